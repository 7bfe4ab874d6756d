# SPDX-License-Identifier: Apache-2.0
"""The dev command: what it lists, and what it says where it cannot help."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASKS = ["demo", "test", "build", "one", "asan", "tsan", "lint", "format", "bench", "check-cuda",
         "setup"]


def dev(*arguments, **environment):
    return subprocess.run([str(ROOT / "dev"), *arguments], capture_output=True, text=True,
                          check=False, env={**os.environ, **environment})


class Dev(unittest.TestCase):
    def test_alone_lists_every_task(self):
        run = dev()
        self.assertEqual(run.returncode, 0)
        for task in TASKS:
            self.assertRegex(run.stdout, rf"\n  ({task}|asan, tsan) ")

    def test_an_unknown_task_is_refused(self):
        run = dev("biuld")
        self.assertEqual(run.returncode, 2)
        self.assertIn('no task "biuld"', run.stderr)

    def test_another_system_is_told_what_is_missing(self):
        with tempfile.TemporaryDirectory() as scratch:
            for tool in ["bash", "dirname", "sed", "id", "cat", "env", "git", "python3"]:
                os.symlink(shutil.which(tool), f"{scratch}/{tool}")
            release = pathlib.Path(scratch, "os-release")
            release.write_text('ID=fedora\nVERSION_ID="42"\n')
            run = dev("setup", PATH=scratch, DRIVETRAIN_OS_RELEASE=str(release))
        self.assertEqual(run.returncode, 1)
        self.assertIn("this system (fedora) is not Debian", run.stderr)
        for package in ["g++", "cmake", "ninja-build", "clang-format-19", "openmpi-bin"]:
            self.assertIn(f"\n  {package}\n", run.stderr)
        self.assertNotIn("\n  git\n", run.stderr)


class WrongTorch(unittest.TestCase):
    def test_is_refused_before_anything_is_installed(self):
        run = dev("setup", Torch_DIR="/nowhere")
        self.assertEqual(run.returncode, 1)
        self.assertIn('Torch_DIR is "/nowhere", where there is no TorchConfig.cmake; allowed:',
                      run.stderr)


class FirstExample(unittest.TestCase):
    def test_differs_from_plain_libtorch_by_at_most_8_lines(self):
        plain, train = ((ROOT / "examples/01_first" / name).read_text().splitlines()
                        for name in ("plain.cpp", "train.cpp"))
        changed = [line for line in train if line not in plain]
        self.assertLessEqual(len(changed), 8, "\n".join(changed))
        self.assertLessEqual(len([line for line in plain if line not in train]), 8)


if __name__ == "__main__":
    unittest.main()
