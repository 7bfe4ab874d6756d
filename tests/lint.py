#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that ./dev lint checks: format, layering, public headers, clang-tidy.

usage: lint.py BUILD_DIR [--no-tidy]
"""

import concurrent.futures
import hashlib
import json
import pathlib
import subprocess
import sys

import layering

ROOT = pathlib.Path(__file__).resolve().parent.parent


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
    """The library's own sources, with what each one is compiled from."""
    database = json.loads((build / "compile_commands.json").read_text())
    return sorted(entry["file"] for entry in database
                  if pathlib.Path(entry["file"]).is_relative_to(ROOT / "src"))


def headers_digest():
    digest = hashlib.sha256()
    for name in sorted(tracked("*.h", ".clang-tidy", "CMakeLists.txt", "src/CMakeLists.txt")):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def tidy(build, source, shared_digest):
    """clang-tidy on one file; a clean result is remembered by content."""
    content = pathlib.Path(source).read_bytes()
    key = hashlib.sha256(content + shared_digest.encode()).hexdigest()
    stamp = build / "tidy" / key
    if stamp.exists():
        return []
    run = subprocess.run(["clang-tidy-19", "--quiet", "-p", str(build), source],
                         cwd=ROOT, capture_output=True, text=True)
    if run.returncode == 0:
        stamp.touch()
        return []
    return [line for line in run.stdout.splitlines() if line.strip()]


def check_tidy(build):
    (build / "tidy").mkdir(exist_ok=True)
    shared_digest = headers_digest()
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        results = pool.map(lambda f: tidy(build, f, shared_digest), tidy_inputs(build))
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
