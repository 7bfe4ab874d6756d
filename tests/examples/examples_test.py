# SPDX-License-Identifier: Apache-2.0
"""Every example, alone and on several processes, with what it prints; and the demo's accuracy.

usage: examples_test.py BIN_DIR DIGITS
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BIN, DIGITS = pathlib.Path(sys.argv[1]), sys.argv[2]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def output_of(program, *arguments, processes=None, simulated=None, mixed_precision=None):
    command, environment = [BIN / program, *arguments], dict(os.environ)
    if mixed_precision:
        environment["DRIVETRAIN_MIXED_PRECISION"] = mixed_precision
    if processes:
        command = [BIN / "drivetrain", "launch", "--num-processes", str(processes),
                   *([] if simulated else ["--cpu"]), *command]
    if simulated:
        environment["DRIVETRAIN_SIM_DEVICES"] = str(simulated)
        environment["DRIVETRAIN_ACCELERATOR"] = "sim"
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250,
                         env=environment)
    assert run.returncode == 0, f"{command}: {run.returncode}\n{run.stdout}{run.stderr}"
    return run.stdout


def number_after(word, text):
    return float(re.search(rf"{word} (-?[\d.e-]+)", text).group(1))


class Examples(unittest.TestCase):
    def test_none_is_forgotten(self):
        tested = {name[5:7] for name in dir(self) if re.match(r"test_\d\d", name)}
        present = {path.name[:2] for path in (ROOT / "examples").glob("[0-9]*")}
        self.assertEqual(tested, present)

    def test_01_first(self):
        plain = number_after("loss", output_of("01_first_plain"))
        self.assertAlmostEqual(number_after("loss", output_of("01_first_train")), plain,
                               delta=0.01 * plain)
        for processes in (2, 3):
            self.assertLess(number_after("loss", output_of("01_first_train", processes=processes)),
                            0.01)

    def test_02_collectives(self):
        text = output_of("02_collectives", processes=3)
        # Samples 1 of 0, 2 of 1, 3 of 2.
        self.assertAlmostEqual(number_after("mean", text), 8 / 6, places=4)
        self.assertEqual(number_after("rows", text), 6)
        self.assertEqual(sorted(re.findall(r"rank (\d) reads (\w)", text)),
                         [("0", "a"), ("0", "b"), ("1", "c"), ("1", "d"), ("2", "e")])
        self.assertIn("stopping", text)

    def test_03_metrics(self):
        for processes in (None, 2, 4):
            self.assertIn("samples 103, mean 51\n", output_of("03_metrics", processes=processes))

    def test_04_accumulate(self):
        for processes in (None, 2):
            self.assertIn("updates 50 learned\n", output_of("04_accumulate", processes=processes))

    def test_05_comm_hook(self):
        self.assertIn("learned", output_of("05_comm_hook", processes=2).split())

    def test_06_uneven(self):
        self.assertIn("equal", output_of("06_uneven", processes=3).split())

    def test_07_hardware(self):
        text = output_of("07_hardware")
        self.assertIn("a tensor of 4194304 bytes took 4194304", text)
        self.assertIn("matmul took time", text)
        self.assertIn("under autocast c10::BFloat16", text)
        self.assertRegex(text, r"\* \w+: ")

    def test_08_simulated(self):
        text = output_of("08_simulated")
        self.assertIn("sim (communication gloo, 2 devices)", text)
        self.assertIn("32768 rows: sim:0 is out of memory. Tried to allocate 32.0 MiB", text)
        before, after = map(float, re.search(r"loss ([\d.e-]+) to ([\d.e-]+)", text).groups())
        self.assertLess(after, 0.5 * before)
        peak, total = map(int, re.search(r"peak (\d+) of (\d+) bytes", text).groups())
        self.assertEqual(total, 16 << 20)
        self.assertTrue(0 < peak <= total)

    def test_09_memory(self):
        for processes in (None, 2):
            with tempfile.TemporaryDirectory() as folder:
                text = output_of("09_memory", folder, processes=processes)
                self.assertEqual(text.count("memory, 24 steps"), 1)
                parameters = (256 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10) * 4
                points = json.loads((pathlib.Path(folder) / "memory.json").read_text())["points"]
                self.assertEqual(points[-1]["parameters"], parameters)
                self.assertEqual(points[-1]["optimizer"], 2 * parameters)
                self.assertGreaterEqual(points[-1]["gradients"], parameters)
                # The outputs of two layers, for 512 rows more.
                self.assertGreaterEqual(points[23]["peak"] - points[11]["peak"], 2 * 512 * 512 * 4)
                names = sorted(path.name for path in pathlib.Path(folder).iterdir())
                self.assertEqual(names,
                                 ["memory.html", "memory.json", "memory.svg", "snapshot.json"])

    def test_10_mixed_precision(self):
        for processes in (None, 2):
            text = output_of("10_mixed_precision", processes=processes)
            self.assertGreater(number_after("skipped", text), 5)
            self.assertIn("first the gradient of parameter ", text)
            self.assertIn("; learned\n", text)

    def test_11_activation_checkpoint(self):
        for processes in (None, 2):
            text = output_of("11_activation_checkpoint", processes=processes)
            self.assertLess(number_after("with", text), 0.5 * number_after("without", text))


class OnSimulatedDevices(unittest.TestCase):
    """By the environment alone, no example knows of it."""

    def test_01_first(self):
        plain = number_after("loss", output_of("01_first_plain"))
        self.assertAlmostEqual(number_after("loss", output_of("01_first_train", simulated=1)), plain,
                               delta=0.01 * plain)
        self.assertLess(number_after("loss", output_of("01_first_train", processes=2, simulated=2)),
                        0.01)

    def test_02_to_06(self):
        here = output_of("02_collectives", processes=3)
        there = output_of("02_collectives", processes=3, simulated=3)
        self.assertEqual(sorted(there.splitlines()), sorted(here.splitlines()))
        self.assertIn("samples 103, mean 51\n", output_of("03_metrics", processes=2, simulated=2))
        for example in ("04_accumulate", "05_comm_hook"):
            self.assertIn("learned", output_of(example, processes=2, simulated=2).split())
        self.assertIn("equal", output_of("06_uneven", processes=3, simulated=3).split())

    def test_07_hardware(self):
        self.assertIn("device sim:0 of 3", output_of("07_hardware", simulated=3))

    def test_demo(self):
        text = output_of("demo_digits", DIGITS, processes=2, simulated=2)
        self.assertIn("processes 2,", text)
        self.assertGreaterEqual(number_after("held-out accuracy", text), 0.96)


class Demo(unittest.TestCase):
    def test_accuracy_in_sixteen_bits(self):
        for precision in ("bf16", "fp16"):
            text = output_of("demo_digits", DIGITS, processes=2, mixed_precision=precision)
            self.assertGreaterEqual(number_after("held-out accuracy", text), 0.96)

    def test_accuracy_on_1_2_and_4_processes(self):
        for processes in (1, 2, 4):
            text = output_of("demo_digits", DIGITS, processes=processes)
            self.assertIn(f"processes {processes},", text)
            self.assertGreaterEqual(number_after("held-out accuracy", text), 0.96)

    def test_a_missing_file_is_named(self):
        run = subprocess.run([BIN / "demo_digits", "nowhere.csv.gz"], capture_output=True,
                             text=True, check=False)
        self.assertEqual(run.returncode, 1)
        self.assertIn("nowhere.csv.gz: cannot be opened; run ./dev setup", run.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
