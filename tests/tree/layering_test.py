# SPDX-License-Identifier: Apache-2.0
"""Each rule of tests/layering.py on a small tree that breaks it."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import layering  # noqa: E402

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def problems(files, frozen="error.h"):
    """What the rules say of a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        tree = {"include/drivetrain/error.h": SPDX, "tests/public_headers.txt": frozen, **files}
        for name, text in tree.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return layering.check(root, sorted(tree))


class Layering(unittest.TestCase):
    def test_this_tree(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        files = sorted(str(path.relative_to(root)) for folder in ("src", "include", "tests")
                       for path in (root / folder).rglob("*") if path.is_file())
        self.assertGreater(len(files), 200)
        self.assertEqual(layering.check(root, files), [])

    def assert_problem(self, files, text, **options):
        found = problems(files, **options)
        self.assertTrue(any(text in problem for problem in found), found)

    def test_a_clean_tree_has_no_problem(self):
        downward = SPDX + '#include "core/text.h"\n#include <drivetrain/error.h>\n'
        self.assertEqual(problems({"src/comm/x.cpp": downward, "src/core/text.h": SPDX}), [])

    def test_an_upward_include(self):
        self.assert_problem({"src/comm/x.cpp": SPDX + '#include "data/y.h"\n'},
                            "room comm includes data/y.h of the later room data")

    def test_an_upward_include_of_a_public_header(self):
        self.assert_problem({"src/core/x.cpp": SPDX + "#include <drivetrain/comm.h>\n"},
                            "of the later room comm")

    def test_libtorch_where_it_must_not_be(self):
        self.assert_problem({"src/cli/x.cpp": SPDX + "#include <ATen/core/Tensor.h>\n"},
                            "room cli must not include LibTorch")

    def test_libtorch_in_the_facts_that_the_command_links(self):
        for include in ("ATen/Context.h", "drivetrain/hardware.h"):
            self.assert_problem({"src/hardware/facts/x.cpp": SPDX + f"#include <{include}>\n"},
                                "the command links this file")
        self.assertEqual(problems({"src/hardware/x.cpp": SPDX + "#include <ATen/Context.h>\n"}), [])

    def test_the_whole_of_libtorch_in_a_header(self):
        self.assert_problem({"tests/x.h": SPDX + "#include <torch/torch.h>\n"},
                            "a header must not include torch/torch.h")

    def test_a_backend_named_outside_the_hardware_room(self):
        for code in ("if (at::hasCUDA()) f();", "kXPU", 'f("npu");', "at::mps::f();", "MpsHooks h;",
                     "c10::kPrivateUse1", "#include <c10/cuda/CUDAStream.h>"):
            self.assert_problem({"src/data/x.cpp": SPDX + code + "\n"}, "x.cpp:2: names the backend")
        for code in ("// as on cuda", "/* npu\n xpu */ f(input);", "const int ramps = camps;"):
            self.assertEqual(problems({"src/data/x.cpp": SPDX + code + "\n"}), [])
        self.assertEqual(problems({"src/hardware/x.cpp": SPDX + "at::hasCUDA();\n"}), [])

    def test_a_missing_licence(self):
        self.assert_problem({"src/core/x.cpp": "int x;\n"}, "no SPDX line")

    def test_a_long_file(self):
        self.assert_problem({"src/core/x.cpp": SPDX + "\n" * 500}, "501 lines; allowed: 500")

    def test_an_unfrozen_public_header(self):
        self.assert_problem({"include/drivetrain/new.h": SPDX}, "freezes error.h")

    def test_a_header_in_detail_is_not_frozen_but_has_a_room(self):
        detail = "include/drivetrain/detail/source.h"
        self.assertEqual(problems({detail: SPDX}), [])
        self.assert_problem({detail: SPDX + "#include <drivetrain/accelerator.h>\n"},
                            "room data includes drivetrain/accelerator.h of the later room")
        self.assert_problem({"include/drivetrain/detail/new.h": SPDX},
                            "include/drivetrain/detail/new.h: name its room")

    def test_an_unknown_room(self):
        self.assert_problem({"src/stuff/x.cpp": SPDX}, "no such room")

    def test_a_vague_name(self):
        self.assert_problem({"src/core/string_utils.cpp": SPDX}, "a name that says nothing")

    def test_a_path_of_one_machine(self):
        self.assert_problem({"src/core/x.cpp": SPDX + "// /ro" + "ot/x\n"},
                            "holds a path of one machine")


if __name__ == "__main__":
    unittest.main()
