# SPDX-License-Identifier: Apache-2.0
"""The rules of the tree that a compiler does not check.

A room includes only rooms above it; no header includes torch/torch.h; files stay under 500
lines; every file names its licence; the public headers are the frozen list; room names are not
vague; only the hardware room's code names a backend; the project holds no path of one machine.
"""

import pathlib
import re

# In the order data flows (docs/architecture.md).
ROOMS = ["core", "config", "hardware", "sim", "comm", "intercept", "data", "precision", "chunk",
         "parallel", "checkpoint", "bigmodel", "tracking", "training", "cli"]
WITHOUT_TORCH = {"core", "config", "cli"}
# The part of a room with LibTorch that the command links, too.
FILES_WITHOUT_TORCH = ("src/hardware/facts/", "src/hardware/cpu_facts.")
HEADERS_WITH_TORCH = re.compile(r"(torch|ATen|c10)/|drivetrain/(hardware|backends|memory)\.h$")
# The room that each public header is the face of, or that a header in detail/ is part of.
PUBLIC_ROOM = {
    "error.h": "core", "config.h": "config", "hardware.h": "hardware", "backends.h": "hardware",
    "nested.h": "comm", "comm.h": "comm", "collate.h": "data", "data.h": "data", "dataset.h": "data",
    "memory.h": "hardware", "precision.h": "precision", "detail/source.h": "data",
    "detail/accelerator_templates.h": "training",
    "parallel.h": "parallel", "progress.h": "tracking", "prepared.h": "training",
    "optimizer.h": "training", "activation_checkpoint.h": "training",
    "local_sgd.h": "training", "schedule.h": "training", "accelerator.h": "training",
    "drivetrain.h": "training",
}
# Where code may say which backend it is for. Comments may everywhere.
BACKEND_ROOMS = {"hardware", "sim"}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# As a word, in capitals (kXPU) and as a part of a name (MpsHooks).
BACKEND = re.compile(r"(?i:cuda|ascend|privateuse1|(?<![a-z])rocm)|"
                     r"(?<![A-Z])(NPU|XPU|MPS|MLU|HPU|MUSA|HIP)(?![a-z])|"
                     r"(Npu|Xpu|Mps|Mlu|Hpu|Musa|Hip)(?![a-z])|"
                     r"(?<![A-Za-z])(npu|xpu|mps|mlu|hpu|musa|hip)(?![A-Za-z])")
MAX_LINES = 500
MAX_PUBLIC_HEADERS = 20
VAGUE = re.compile(r"(^|[/_])(utils?|helpers?|managers?|misc)([_./]|$)", re.IGNORECASE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# Written in two pieces so that this file does not break its own rule.
MACHINE_PATH = re.compile("/" + r"(root|work|home/\w+)/")


def room_of(include):
    """The room that an include path belongs to, or None for a third party's."""
    parts = pathlib.PurePosixPath(include).parts
    if parts[0] == "drivetrain" and len(parts) > 1:
        return PUBLIC_ROOM.get("/".join(parts[1:]))
    return parts[0] if parts[0] in ROOMS and len(parts) > 1 else None


def file_room(name):
    parts = pathlib.PurePosixPath(name).parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ("include", "drivetrain"):
        return PUBLIC_ROOM.get("/".join(parts[2:]))
    return None


def check_includes(name, text):
    room = file_room(name)
    for _, include in INCLUDE.findall(text):
        if name.endswith(".h") and include in ("torch/torch.h", "torch/all.h"):
            yield f"{name}: a header must not include {include} (13 s a file)"
        if room is None:
            continue
        if name.startswith("src/") and include in ("torch/torch.h", "torch/all.h"):
            yield f"{name}: includes {include}; take the narrow header"
        if room in WITHOUT_TORCH and re.match(r"(torch|ATen|c10)/", include):
            yield f"{name}: room {room} must not include LibTorch ({include})"
        if name.startswith(FILES_WITHOUT_TORCH) and HEADERS_WITH_TORCH.match(include):
            yield f"{name}: the command links this file: it must not include LibTorch ({include})"
        other = room_of(include)
        if other and ROOMS.index(other) > ROOMS.index(room):
            yield f"{name}: room {room} includes {include} of the later room {other}"


def check_backends(name, text):
    if file_room(name) is None or file_room(name) in BACKEND_ROOMS:
        return
    code = COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        if found := BACKEND.search(line):
            yield (f"{name}:{number}: names the backend {found.group()}; ask the hardware room "
                   "(BaseAccelerator, Capabilities)")


def check_file(root, name):
    path = root / name
    if path.suffix not in {".h", ".cpp", ".py", ".cmake", ".sh"} and path.name != "CMakeLists.txt":
        return
    text = path.read_text()
    lines = text.splitlines()
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
        yield f"{name}: no SPDX line at the top"
    if len(lines) > MAX_LINES:
        yield f"{name}: {len(lines)} lines; allowed: {MAX_LINES}"
    if VAGUE.search(name):
        yield f"{name}: a name that says nothing; name what is in it"
    if MACHINE_PATH.search(text):
        yield f"{name}: holds a path of one machine"
    if path.suffix in {".h", ".cpp"}:
        yield from check_includes(name, text)
        yield from check_backends(name, text)


def check_public_headers(root, files):
    """The headers for users; those in detail/ are installed because the former include them, but
    are neither frozen nor counted."""
    installed = sorted(name.removeprefix("include/drivetrain/") for name in files
                       if name.startswith("include/drivetrain/"))
    present = [name for name in installed if not name.startswith("detail/")]
    frozen = (root / "tests/public_headers.txt").read_text().split()
    if present != sorted(frozen):
        yield (f"include/drivetrain holds {', '.join(present)}, but tests/public_headers.txt "
               f"freezes {', '.join(sorted(frozen))}; change the list with the header")
    if len(present) > MAX_PUBLIC_HEADERS:
        yield f"{len(present)} public headers; allowed: {MAX_PUBLIC_HEADERS}"
    for name in installed:
        if name not in PUBLIC_ROOM:
            yield f"include/drivetrain/{name}: name its room in tests/layering.py"


def check_rooms(files):
    for name in files:
        parts = pathlib.PurePosixPath(name).parts
        if parts[0] == "src" and len(parts) > 2 and parts[1] not in ROOMS:
            yield f"{name}: no such room; allowed: {', '.join(ROOMS)}"


def check(root, files):
    """All problems in `files` (paths below `root`), one line each."""
    problems = list(check_rooms(files))
    problems += check_public_headers(root, files)
    for name in files:
        problems += check_file(root, name)
    return problems
