#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/new-backend adds two files and two lines or nothing, and refuses what would not compile or
be found."""

import ctypes
import difflib
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools/new-backend"
EDITED = ["src/CMakeLists.txt", "src/hardware/backends.def"]
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def contents(tree):
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


class OnACopy(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        shutil.copytree(ROOT / "src/hardware", self.tree / "src/hardware")
        shutil.copy(ROOT / EDITED[0], self.tree / EDITED[0])
        self.before = contents(self.tree)

    def run_tool(self, *arguments, root=None, **options):
        root = self.tree if root is None else root
        return subprocess.run([TOOL, *arguments, "--root", root], stderr=subprocess.PIPE, text=True,
                              **{"stdout": subprocess.PIPE, **options})

    def changed_lines(self, name):
        before, after = self.before[name].decode().splitlines(), (self.tree / name).read_text().splitlines()
        return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]

    def assert_refused(self, run, *texts):
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertRegex(run.stderr, r"\Anew-backend: [ -~]+\n\Z")  # one line, printable
        for text in texts:
            self.assertIn(text, run.stderr)

    def assert_unchanged(self):
        self.assertEqual(contents(self.tree), self.before)


class Adding(OnACopy):
    def test_adds_two_files_and_two_lines(self):
        mode = (self.tree / EDITED[1]).stat().st_mode
        run = self.run_tool("ab_2", "--plugin", "ab", "--communication", "abccl")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(contents(self.tree).keys() - self.before.keys(),
                         {"src/hardware/ab_2.h", "src/hardware/ab_2.cpp"})
        self.assertEqual(self.changed_lines(EDITED[0]), ["+   hardware/ab_2.cpp"])
        self.assertEqual(self.changed_lines(EDITED[1]), ["+ DRIVETRAIN_BACKEND(ab_2)"])
        self.assertEqual((self.tree / EDITED[1]).stat().st_mode, mode)
        self.assertEqual(run.stdout.splitlines(),
                         ["src/hardware/ab_2.h", "src/hardware/ab_2.cpp", "src/CMakeLists.txt",
                          "src/hardware/backends.def (after sdaa, before cpu)"])

    def test_leaves_nothing_to_fill_in_by_hand(self):
        self.run_tool("ab_2", "--communication", "abccl")
        text = (self.tree / "src/hardware/ab_2.cpp").read_text()
        self.assertNotIn("@", text)
        for word in ("Ab2Accelerator", "ab_2_backend()", '"abccl"', "libab_2rt.so"):
            self.assertIn(word, text)

    def test_puts_the_row_where_its_priority_asks_and_says_so(self):
        for name, priority, where in (("first", 1, "before cuda"), ("same", 10, "after cuda, before npu"),
                                      ("mid", 45, "after mps, before mlu"),
                                      ("aft", 45, "after mid, before mlu"),
                                      ("late", 95, "after sdaa, before cpu"),
                                      ("last", 999, "after late, before cpu")):
            run = self.run_tool(name, "--priority", str(priority))
            self.assertIn(f"backends.def ({where})\n", run.stdout, run.stderr)
        rows = [line[19:-1] for line in (self.tree / EDITED[1]).read_text().splitlines() if line[0] == "D"]
        self.assertEqual(" ".join(rows),
                         "first cuda same npu xpu mps mid aft mlu musa mtia hpu sdaa late last cpu")

    def test_puts_the_row_before_the_cpu_where_priorities_are_not_known(self):
        for path in (self.tree / "src/hardware").glob("*.cpp"):
            path.unlink()
        self.assertIn("(after sdaa, before cpu)", self.run_tool("toy", "--priority", "5").stdout)


class Refusing(OnACopy):
    def test_what_is_no_name(self):
        long = "a" * 33
        for arguments, message in ((["Toy"], 'name "Toy" is no name; allowed: at most 32 lower-case'),
                                   (["a b"], 'name "a b" is no name'), ([""], 'name "" is no name'),
                                   (["a__b"], 'name "a__b" is no name'), (["a_"], 'name "a_" is no name'),
                                   (["a\nb"], r'name "a\nb" is no name'), (["é\x1b"], r'"\u00e9\u001b" is no'),
                                   ([b"\xff"], r'name "\udcff" is no name'), ([long], f'name "{long}" is no'),
                                   (["a" * 9999], "aaa...\" is no name"),
                                   (["toy", "--plugin", ""], '--plugin "" is no name'),
                                   (["toy", "--plugin", "../x"], '--plugin "../x" is no name'),
                                   (["toy", "--communication", ""], '--communication "" is no name')):
            self.assert_refused(self.run_tool(*arguments), message, "; allowed: ", "; choose another")
        self.assert_unchanged()

    def test_a_priority_after_the_cpu(self):
        for value in ("0", "-1", "1000"):
            self.assert_refused(self.run_tool("toy", "--priority", value),
                                f"--priority {value} is not before the cpu; allowed: 1 to 999; choose one")
        self.assert_unchanged()

    def test_usage_as_argparse_does(self):
        for arguments in ([], ["toy", "--priority", "soon"], ["toy", "--colour", "red"]):
            run = self.run_tool(*arguments)
            self.assertEqual(run.returncode, 2)
            self.assertIn("new-backend: error: ", run.stderr)

    def test_a_name_that_has_a_meaning(self):
        for name in ("base", "device", "auto", "sim", "cpu", "meta", "gpu", "scoped", "privateuse1"):
            self.assert_refused(self.run_tool(name), f'name "{name}" is reserved; allowed: a name that is no '
                                "C++ keyword and none of accelerator, ", "; choose another")
        for name in ("int", "co_await", "xor"):
            self.assert_refused(self.run_tool(name), f'name "{name}" is a C++ keyword; allowed: ')
        self.assert_unchanged()

    def test_a_name_that_has_a_row(self):
        for name in ("cuda", "xpu", "mlu", "sdaa"):
            self.assert_refused(self.run_tool(name), f'name "{name}" has a row in src/hardware/backends.def '
                                "already; allowed: a name other than cuda, npu, xpu, ", "; choose another")
        self.assert_unchanged()

    def test_a_name_whose_files_or_line_are_there(self):
        hardware = self.tree / "src/hardware"
        (hardware / "toy.h").touch()
        (hardware / "link.cpp").symlink_to("nowhere")
        (hardware / "upper.D").mkdir()
        sources = self.tree / EDITED[0]
        sources.write_text(sources.read_text() + "  hardware/listed.cpp\n")
        self.before = contents(self.tree)
        for name, there in (("toy", "toy.h"), ("link", "link.cpp"), ("upper", "upper.D"),
                            ("kernels", "kernels"), ("table", "table.cpp"), ("backends", "backends.def")):
            self.assert_refused(self.run_tool(name), f'name "{name}" is taken: "src/hardware/{there}" is there '
                                "already; allowed: a name that no file or folder there has; choose another")
        self.assert_refused(self.run_tool("listed"), "src/CMakeLists.txt lists hardware/listed.cpp already")
        self.assert_unchanged()

    def test_a_second_time_and_a_class_that_is_taken(self):
        self.assertEqual(self.run_tool("ab_2").returncode, 0)
        self.before = contents(self.tree)
        self.assert_refused(self.run_tool("ab_2"), 'name "ab_2" has a row')
        self.assert_refused(self.run_tool("ab2"), 'the class Ab2Accelerator, which the backend "ab_2" has')
        self.assert_unchanged()


class ATreeThatIsNotWhole(OnACopy):
    def test_no_tree(self):
        for root, quoted in (("", '""'), ("/no\nwhere", r'"/no\nwhere"'), ("/dev/null", '"/dev/null"')):
            self.assert_refused(self.run_tool("toy", root=root),
                                f"--root {quoted} has no file src/CMakeLists.txt; allowed: the folder of a "
                                "Drivetrain tree; give that, or leave --root out")
        self.assert_refused(self.run_tool("toy", root="/" + "a" * 300), "File name too long; nothing was changed")

    def test_a_file_to_edit_that_is_missing_or_no_text(self):
        for name in EDITED:
            path = self.tree / name
            path.write_bytes(b"\xff")
            self.assert_refused(self.run_tool("toy"), f'{name}" is not text in UTF-8; allowed: ')
            path.unlink()
            self.assert_refused(self.run_tool("toy"), f"has no file {name}; allowed: ")
            path.write_bytes(self.before[name])
        self.assert_unchanged()

    def test_a_file_to_edit_without_the_line_to_put_one_before(self):
        for name, line in zip(EDITED, ("hardware/optimizer_state.cpp", "DRIVETRAIN_BACKEND(cpu)")):
            path = self.tree / name
            path.write_text(path.read_text().replace(line, ""))
            self.assert_refused(self.run_tool("toy"), f"{name} has no ", f'"{line}"', "; restore it")
            path.write_bytes(self.before[name])
        self.assert_unchanged()

    def test_a_template_that_is_missing(self):
        (self.tree / "tools").mkdir()
        tool = shutil.copy(TOOL, self.tree / "tools")
        run = subprocess.run([tool, "toy"], capture_output=True, text=True)
        self.assert_refused(run, 'backend.h.in": No such file or directory; nothing was changed; allowed: ')


class ADiskThatFails(OnACopy):
    def test_a_folder_or_file_that_is_read_only(self):
        prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: -1)

        def give_up_rights():  # the superuser's, to write everywhere
            prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)

        sealed = self.tree / "sealed"
        sealed.mkdir(mode=0o555)
        if subprocess.run(["test", "-w", sealed], preexec_fn=give_up_rights).returncode == 0:
            self.skipTest("the superuser's rights cannot be given up here")
        for name, named in (("src/hardware", "src/hardware/toy.h"), ("src", EDITED[0]),
                            (EDITED[0], EDITED[0]), (EDITED[1], EDITED[1])):
            mode = (self.tree / name).stat().st_mode
            (self.tree / name).chmod(mode & ~0o222)
            run = self.run_tool("toy", preexec_fn=give_up_rights)
            (self.tree / name).chmod(mode)
            self.assert_refused(run, f'{named}": Permission denied; nothing was changed; allowed: files that can '
                                "be read and written, on a disk with room; correct that and run it again")
            self.assert_unchanged()

    def test_a_disk_that_is_full_at_any_of_the_files(self):
        self.assertEqual(self.run_tool("toy").returncode, 0)
        header, source, sources = ((self.tree / name).stat().st_size for name in
                                   ("src/hardware/toy.h", "src/hardware/toy.cpp", EDITED[0]))
        self.assertTrue(max(header, len(self.before[EDITED[1]])) < source < sources)
        shutil.rmtree(self.tree / "src")
        for name, content in self.before.items():
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / name).write_bytes(content)
        for limit, named in ((header - 1, "toy.h"), (source - 1, "toy.cpp"), (sources - 1, "CMakeLists.txt")):
            limits = (limit, limit)
            run = self.run_tool("toy", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))
            self.assert_refused(run, f'{named}": File too large; nothing was changed')
            self.assert_unchanged()

    def run_with(self, statements):
        """The tool in a Python where something fails."""
        program = (f"import os, pathlib, runpy, sys\nreal = os.replace\n{statements}\n"
                   "sys.argv.pop(0)\nrunpy.run_path(sys.argv[0], run_name='__main__')")
        return subprocess.run([sys.executable, "-c", program, TOOL, "toy", "--root", self.tree],
                              capture_output=True, text=True)

    def test_an_interrupt_during_an_edit(self):
        run = self.run_with("def replace(fresh, path):\n"
                            "  if 'CMake' in str(path): raise KeyboardInterrupt\n"
                            "  real(fresh, path)\n"
                            "os.replace = replace")
        self.assert_refused(run, "interrupted; see git status, and run it again")
        self.assert_unchanged()

    def test_what_cannot_be_put_back_is_named(self):
        run = self.run_with("def fail(*_, **__): raise OSError(5, 'Input/output error')\n"
                            "os.replace = pathlib.Path.unlink = fail")
        self.assert_refused(run, 'toy.h", "', 'toy.cpp" could not be put back; allowed: ', "git status")

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_standard_output_that_is_full(self):
        with open("/dev/full", "w") as full:
            run = self.run_tool("toy", stdout=full)
        self.assert_refused(run, "the backend was added, but standard output: No space left on device")
        self.assertEqual(self.changed_lines(EDITED[1]), ["+ DRIVETRAIN_BACKEND(toy)"])


if __name__ == "__main__":
    unittest.main()
