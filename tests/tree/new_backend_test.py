#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/new-backend adds two files and two lines, and refuses what would not compile or be found."""

import difflib
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EDITED = ["src/CMakeLists.txt", "src/hardware/backends.def"]


class NewBackend(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        for name in EDITED:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.tree / name)

    def run_tool(self, *arguments):
        return subprocess.run([ROOT / "tools/new-backend", *arguments, "--root", self.tree],
                              capture_output=True, text=True)

    def changed_lines(self, name):
        before, after = ((tree / name).read_text().splitlines() for tree in (ROOT, self.tree))
        return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]

    def test_adds_two_files_and_two_lines(self):
        run = self.run_tool("ab_2", "--plugin", "ab", "--communication", "abccl")
        self.assertEqual(run.returncode, 0, run.stderr)
        files = {str(path.relative_to(self.tree)) for path in self.tree.rglob("*") if path.is_file()}
        self.assertEqual(files - set(EDITED), {"src/hardware/ab_2.h", "src/hardware/ab_2.cpp"})
        self.assertEqual(self.changed_lines(EDITED[0]), ["+   hardware/ab_2.cpp"])
        self.assertEqual(self.changed_lines(EDITED[1]), ["+ DRIVETRAIN_BACKEND(ab_2)"])

    def test_leaves_nothing_to_fill_in_by_hand(self):
        self.run_tool("ab_2", "--communication", "abccl")
        text = (self.tree / "src/hardware/ab_2.cpp").read_text()
        self.assertNotIn("@", text)
        for word in ("Ab2Accelerator", "ab_2_backend()", '"abccl"', "libab_2rt.so"):
            self.assertIn(word, text)

    def test_refuses_with_the_value_and_what_is_allowed(self):
        for arguments, message in ((["Toy"], 'name "Toy" is no name; allowed: lower-case'),
                                   (["a b"], 'name "a b" is no name'),
                                   (["toy", "--plugin", "../x"], '--plugin "../x" is no name'),
                                   (["toy", "--priority", "1000"], "allowed: 1 to 999")):
            run = self.run_tool(*arguments)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(message, run.stderr)
        self.assertEqual([self.changed_lines(name) for name in EDITED], [[], []])

    def test_refuses_a_name_that_is_taken(self):
        self.assertEqual(self.run_tool("toy").returncode, 0)
        self.assertIn("src/hardware/toy.cpp is there already", self.run_tool("toy").stderr)


if __name__ == "__main__":
    unittest.main()
