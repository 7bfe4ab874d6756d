#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that ./dev lint checks: format, layering, public headers, clang-tidy.

usage: lint.py BUILD_DIR [--no-tidy]
"""

import collections
import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys

import layering

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIDY_BATCH = 10  # sources read as one; 2 GB of memory


def tracked(*patterns):
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listing.stdout.split() if (ROOT / name).is_file()]


def check_format():
    files = tracked("*.h", "*.cpp")
    run = subprocess.run(["clang-format-19", "--dry-run", "-Werror", *files],
                         cwd=ROOT, capture_output=True, text=True)
    wrong = sorted({line.split(":")[0] for line in run.stderr.splitlines() if "error:" in line})
    return [f"{name}: not in the project's format; run ./dev format" for name in wrong]


def tidy_inputs(build):
    """The library's own sources, each with the command that compiles it, less the precompiled header:
    a source must include what it uses. The same commands are in build/tidy for clang-tidy."""
    entries = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if pathlib.Path(entry["file"]).is_relative_to(ROOT / "src"):
            entry["command"] = re.sub(r" -Winvalid-pch| -include \S+cmake_pch\.hxx", "", entry["command"])
            entries.append(entry)
    (build / "tidy/compile_commands.json").write_text(json.dumps(entries))
    return {entry["file"]: entry for entry in entries}


def headers_digest():
    digest = hashlib.sha256()
    for name in sorted(tracked("*.h", ".clang-tidy", "CMakeLists.txt", "src/CMakeLists.txt")):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def stamp_of(build, source, shared_digest):
    """The file that says that this content of a source, among these headers, is clean."""
    content = pathlib.Path(source).read_bytes()
    return build / "tidy" / hashlib.sha256(content + shared_digest.encode()).hexdigest()


def run_tidy(database, source, *options):
    return subprocess.run(["clang-tidy-19", "--quiet", "-p", str(database), *options, source],
                          cwd=ROOT, capture_output=True, text=True)


def is_clean_together(scratch, entries):
    """clang-tidy over several sources as one, so that LibTorch's headers are read and matched once."""
    scratch.mkdir(parents=True, exist_ok=True)
    batch = scratch / "batch.cpp"
    batch.write_text("".join(f'#include "{entry["file"]}"\n' for entry in entries))
    first = entries[0]
    command = first["command"].replace(first["file"], str(batch))
    (scratch / "compile_commands.json").write_text(json.dumps(
        [{"directory": first["directory"], "file": str(batch), "command": command}]))
    return run_tidy(scratch, str(batch), "--checks=-bugprone-suspicious-include",
                    f"--config-file={ROOT / '.clang-tidy'}",
                    "--header-filter=.*/(include/drivetrain|src)/.*").returncode == 0


def tidy(build, number, entries, shared_digest):
    """What clang-tidy finds in a batch of sources; a clean one is remembered by content.

    A batch that is not clean as one (a finding, or two sources that cannot stand in one file) is
    gone over source by source, which also reads better.
    """
    clean = len(entries) > 1 and is_clean_together(build / "tidy" / f"batch{number}", entries)
    found = []
    for entry in entries:
        run = None if clean else run_tidy(build / "tidy", entry["file"])
        if run is None or run.returncode == 0:
            stamp_of(build, entry["file"], shared_digest).touch()
        else:
            found += [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    return found


def batches_of(entries):
    """Sources that are compiled alike, TIDY_BATCH at a time."""
    alike = collections.defaultdict(list)
    for entry in entries:
        alike[re.sub(r" -o \S+ -c \S+", "", entry["command"])].append(entry)
    return [group[start:start + TIDY_BATCH] for group in alike.values()
            for start in range(0, len(group), TIDY_BATCH)]


def check_tidy(build):
    (build / "tidy").mkdir(exist_ok=True)
    shared_digest = headers_digest()
    inputs = tidy_inputs(build)
    pending = [inputs[source] for source in sorted(inputs)
               if not stamp_of(build, source, shared_digest).exists()]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        results = pool.map(lambda batch: tidy(build, *batch, shared_digest), enumerate(batches_of(pending)))
        return [line for lines in results for line in lines]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    problems = check_format() + layering.check(ROOT, tracked("*"))
    if "--no-tidy" not in sys.argv and not problems:
        problems = check_tidy(build)
    for problem in problems:
        print(problem)
    print(f"lint: {len(problems)} problem(s)" if problems else "lint: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
