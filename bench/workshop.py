# SPDX-License-Identifier: Apache-2.0
"""What the measurements need: the Python side's environment, our programs, the machine's facts."""

import datetime
import os
import pathlib
import platform
import re
import shutil
import subprocess
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / "build" / "bench-python"
RELEASE = ROOT / "build" / "release"
CLEAN_BUILD = ROOT / "build" / "bench-clean"
# Written by `./dev test` after a build from an empty folder, and by measure_clean_build().
CLEAN_LOG = ROOT / "build" / "clean_build_and_tests.seconds"
REQUIREMENTS = ("torch==2.13.0", "accelerate==1.15.0", "numpy")


class WorkshopError(Exception):
    """Something that the measurements need could not be made."""


def run(command, **options):
    """Runs a tool; its output only where it fails."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        raise WorkshopError(f"{' '.join(map(str, command))}: exit code {done.returncode}: "
                            + " | ".join((errors or lines)[-3:]))
    return done.stdout


def make_python():
    """A virtual environment with just the packages that are measured."""
    stamp = PYTHON / "installed"
    wanted = "\n".join(REQUIREMENTS)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    venv.create(PYTHON, with_pip=True, clear=True)
    run([PYTHON / "bin/pip", "install", "-q", "--disable-pip-version-check", *REQUIREMENTS])
    stamp.write_text(wanted)


def configure():
    """Configures the release build; returns what it says of LibTorch."""
    output = run(["cmake", "--preset", "release"])
    found = re.search(r"LibTorch (\S+): ", output)
    return found.group(1) if found else "unknown"


def build(target):
    """None, or why the target could not be built."""
    try:
        run(["cmake", "--build", RELEASE, "--target", target])
    except WorkshopError as error:
        return str(error)
    return None


def first_match(path, pattern):
    try:
        found = re.search(pattern, pathlib.Path(path).read_text())
    except OSError:
        found = None
    return found.group(1).strip() if found else "unknown"


def installed_versions():
    listing = run([PYTHON / "bin/pip", "list", "--format=freeze", "--disable-pip-version-check"])
    versions = dict(line.split("==", 1) for line in listing.splitlines() if "==" in line)
    return {name: versions.get(name, "unknown") for name in ("torch", "accelerate", "numpy")}


def machine_facts(libtorch):
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": first_match("/proc/cpuinfo", r"model name\s*:(.*)"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": first_match("/proc/meminfo", r"MemTotal:(.*)"),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "compiler": run([os.environ.get("CXX", "c++"), "--version"]).splitlines()[0],
        "python": platform.python_version(),
        "libtorch": libtorch,
        "packages": installed_versions(),
        "commit": run(["git", "describe", "--always", "--dirty"]).strip(),
    }


def measure_clean_build():
    """Builds and tests from an empty folder, without a compiler cache; returns the seconds."""
    shutil.rmtree(CLEAN_BUILD, ignore_errors=True)
    uncached = os.environ | {"CCACHE_DISABLE": "1"}
    started = time.monotonic()
    run(["cmake", "--preset", "dev", "-B", CLEAN_BUILD], env=uncached)
    run(["cmake", "--build", CLEAN_BUILD], env=uncached)
    run(["python3", ROOT / "tests/lint.py", CLEAN_BUILD], env=uncached)
    run(["ctest", "--test-dir", CLEAN_BUILD, "--output-on-failure"], env=uncached)
    seconds = time.monotonic() - started
    CLEAN_LOG.write_text(f"{seconds:.0f}\n")
    shutil.rmtree(CLEAN_BUILD)
    return seconds


def logged_clean_build():
    """The seconds of the last clean build and test run, or None."""
    try:
        return float(CLEAN_LOG.read_text())
    except (OSError, ValueError):
        return None
