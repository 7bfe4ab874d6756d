# SPDX-License-Identifier: Apache-2.0
"""The logic of ./dev bench: what is parsed, paired, judged and printed. Measures nothing."""

import contextlib
import io
import json
import os
import pathlib
import re
import sys
import time
import unittest
from unittest import mock

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
sys.dont_write_bytecode = True

import goals  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402


def pair(ours=("a", "x"), theirs=("b", "y"), goal=goals.at_most(1.0), unit="us"):
    return goals.Pair("pair", ours, theirs, unit, goal)


def group(*pairs, rounds=3, warmups=0):
    return goals.Group(rounds, warmups, pairs)


def output_of(function, *arguments):
    """What a call returns, and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, \
            contextlib.redirect_stderr(io.StringIO()):
        returned = function(*arguments)
    return returned, out.getvalue()


class Parsing(unittest.TestCase):
    def test_lines_are_found_behind_a_launchers_prefix(self):
        series = measure.parse_samples(
            'W1130 warning\n[rank 0] BENCH {"samples": {"ours": [1.5, 2], "theirs": [3]}}\nbye',
            10.0, 12.5)
        self.assertEqual(series, {"wall": [2.5], "ours": [1.5, 2], "theirs": [3]})

    def test_moments_count_from_the_start(self):
        series = measure.parse_samples('BENCH {"at": {"first_step": 10.25}}', 10.0, 11.0)
        self.assertEqual(series, {"wall": [1.0], "first_step": [0.25]})

    def test_a_series_goes_on_over_several_lines(self):
        series = measure.parse_samples('BENCH {"samples": {"a": [1]}}\nBENCH {"samples": {"a": [2]}}',
                                       0, 1)
        self.assertEqual(series["a"], [1, 2])

    def test_a_broken_line_is_an_error(self):
        with self.assertRaisesRegex(measure.MeasureError, 'BENCH {"samples": '):
            measure.parse_samples('BENCH {"samples": ', 0, 1)


class Running(unittest.TestCase):
    def python(self, code, **options):
        return measure.run_command([sys.executable, "-c", code], **options)

    def test_a_programs_report_is_returned(self):
        series = self.python('print("BENCH", \'{"samples": {"a": [7]}}\')')
        self.assertEqual(series["a"], [7])
        self.assertGreater(series["wall"][0], 0)

    def test_a_moment_is_on_the_runners_clock(self):
        series = self.python('import time; print("BENCH {\\"at\\": {\\"m\\": %r}}" % time.monotonic())')
        self.assertTrue(0 < series["m"][0] <= series["wall"][0], series)

    def test_a_missing_program_is_an_error(self):
        with self.assertRaisesRegex(measure.MeasureError, "/nowhere/at_all: No such file"):
            measure.run_command(["/nowhere/at_all"])

    def test_a_failing_program_is_an_error_with_its_last_lines(self):
        with self.assertRaisesRegex(measure.MeasureError, "exit code 3: out of luck"):
            self.python('print("out of luck"); raise SystemExit(3)')

    def test_a_hanging_program_is_ended_with_its_children(self):
        code = "import subprocess; print(subprocess.Popen(['sleep', '60']).wait())"
        started = time.monotonic()
        with self.assertRaisesRegex(measure.MeasureError, "not done after 1 s"):
            self.python(code, timeout=1)
        self.assertLess(time.monotonic() - started, 10)

    def test_a_launchers_variables_do_not_reach_the_programs(self):
        with mock.patch.dict(os.environ, {"RANK": "1", "DRIVETRAIN_DEBUG": "1", "KEPT": "yes"}):
            passed = measure.environment()
        self.assertNotIn("RANK", passed)
        self.assertNotIn("DRIVETRAIN_DEBUG", passed)
        self.assertEqual(passed["KEPT"], "yes")
        self.assertEqual(passed["DRIVETRAIN_CPU"], "1")


class Rounds(unittest.TestCase):
    def test_programs_run_by_turns_and_warmups_do_not_count(self):
        order = []

        def run_program(name):
            order.append(name)
            return {"x": [len(order)], "y": [len(order)]}

        rounds = measure.run_rounds(group(pair(), rounds=2, warmups=1), run_program, {})
        self.assertEqual(order, ["a", "b", "a", "b", "a", "b"])
        self.assertEqual(rounds["a"], [{"x": [3], "y": [3]}, {"x": [5], "y": [5]}])

    def test_a_program_runs_once_a_round_for_all_its_pairs(self):
        order = []
        shared = group(pair(theirs=("a", "y")), pair(theirs=("b", "y")), rounds=1)
        measure.run_rounds(shared, lambda name: order.append(name) or {}, {})
        self.assertEqual(order, ["a", "b"])

    def test_a_failure_fails_its_own_pairs_only(self):
        within, across = pair(theirs=("a", "y")), pair(theirs=("b", "y"))
        failures = {}

        def run_program(name):
            if name == "b":
                raise measure.MeasureError("b is broken")
            return {"x": [1.0], "y": [2.0]}

        rounds = measure.run_rounds(group(within, across), run_program, failures)
        self.assertEqual(measure.pair_up(within, rounds, failures).ours, [1.0, 1.0, 1.0])
        with self.assertRaisesRegex(measure.MeasureError, "b is broken"):
            measure.pair_up(across, rounds, failures)

    def test_a_program_that_failed_is_not_run_again(self):
        order = []

        def run_program(name):
            order.append(name)
            raise measure.MeasureError("broken")

        measure.run_rounds(group(pair(), rounds=5), run_program, {"b": "not built"})
        self.assertEqual(order, ["a"])


class Pairing(unittest.TestCase):
    def test_sides_of_one_program_pair_block_by_block(self):
        rounds = {"a": [{"x": [1, 2], "y": [3, 4]}, {"x": [5, 6], "y": [7, 8]}]}
        sides = measure.pair_up(pair(theirs=("a", "y")), rounds, {})
        self.assertEqual((sides.ours, sides.theirs), ([1, 2, 5, 6], [3, 4, 7, 8]))

    def test_sides_of_two_programs_pair_by_the_median_of_each_round(self):
        rounds = {"a": [{"x": [1, 2, 9]}, {"x": [4]}], "b": [{"y": [5, 7]}, {"y": [8]}]}
        sides = measure.pair_up(pair(), rounds, {})
        self.assertEqual((sides.ours, sides.theirs), ([2, 4], [6, 8]))

    def test_blocks_that_do_not_match_are_an_error(self):
        with self.assertRaisesRegex(measure.MeasureError, "a: 2 samples against 1"):
            measure.pair_up(pair(theirs=("a", "y")), {"a": [{"x": [1, 2], "y": [3]}]}, {})

    def test_a_series_that_is_absent_is_an_error(self):
        with self.assertRaisesRegex(measure.MeasureError, r'b: reported no "y".*wall'):
            measure.pair_up(pair(), {"a": [{"x": [1]}], "b": [{"wall": [1]}]}, {})


class Verdicts(unittest.TestCase):
    def judged(self, goal, ours, theirs, unit="us"):
        return report.judge(pair(goal=goal, unit=unit), measure.Sides(ours, theirs))

    def test_the_ratio_is_the_median_of_paired_ratios(self):
        # The ratio of the medians would be 1: the machine grew slower while both ran.
        result = self.judged(goals.at_most(0.75), [1, 10, 100], [100, 20, 10])
        self.assertEqual((result["ours"], result["theirs"], result["ratio"]), (10, 20, 0.5))
        self.assertEqual(self.judged(goals.at_most(1), [1, 10, 100], [2, 20, 200])["ratio"], 0.5)

    def test_a_time_is_judged_by_theirs_over_ours(self):
        self.assertEqual(self.judged(goals.times_sooner(12), [1.0], [12.0])["verdict"], "ok")
        self.assertEqual(self.judged(goals.times_sooner(12), [1.0], [11.9])["verdict"], "short")

    def test_a_rate_is_judged_by_ours_over_theirs(self):
        self.assertEqual(self.judged(goals.times_the_rate(2), [4.0], [2.0])["verdict"], "ok")
        self.assertEqual(self.judged(goals.times_the_rate(2), [3.9], [2.0])["verdict"], "short")

    def test_a_share_is_judged_by_ours_over_theirs(self):
        self.assertEqual(self.judged(goals.at_most(0.75), [75.0], [100.0])["verdict"], "ok")
        self.assertEqual(self.judged(goals.at_most(0.75), [76.0], [100.0])["verdict"], "short")

    def test_a_margin_widens_the_bound_and_is_printed(self):
        goal = goals.at_most(1, 0.05)
        self.assertEqual(str(goal), "<= 1 +5%")
        self.assertTrue(goal.is_met(1.049))
        self.assertFalse(goal.is_met(1.051))

    def test_the_spread_and_all_samples_are_kept(self):
        result = self.judged(goals.at_most(1), [3.0, 1.0, 2.0], [4.0, 4.0, 4.0])
        self.assertEqual(result["spread"]["ours"], {"min": 1.0, "median": 2.0, "max": 3.0})
        self.assertEqual(result["spread"]["ratio"], {"min": 0.25, "median": 0.5, "max": 0.75})
        self.assertEqual(result["samples"], {"ours": [3.0, 1.0, 2.0], "theirs": [4.0, 4.0, 4.0]})

    def test_a_difference_is_judged_in_the_unit_of_the_sides(self):
        result = self.judged(goals.at_most_more(3), [12.0, 13.0, 20.0], [10.0, 10.0, 10.0])
        self.assertEqual((result["ratio"], result["verdict"]), (3.0, "ok"))
        self.assertEqual(self.judged(goals.at_most_more(3), [13.1], [10.0])["verdict"], "short")

    def test_one_figure_is_judged_by_its_goal(self):
        within = report.judge_alone("build", goals.at_most(25), 24.9, "min")
        beyond = report.judge_alone("build", goals.at_most(25), 25.1, "min")
        self.assertEqual((within["verdict"], beyond["verdict"]), ("ok", "short"))


class Printing(unittest.TestCase):
    def test_figures_have_three_digits_and_a_unit(self):
        cases = {(148.26, "us"): "148 us", (312345.0, "us"): "312 ms", (3.456, "s"): "3.46 s",
                 (0.01234, "s"): "12.3 ms", (260123.0, "samples/s"): "260k samples/s",
                 (None, ""): "-", (999.6, "us"): "1 ms", (1234567.0, "samples/s"): "1235k samples/s"}
        for (value, unit), text in cases.items():
            self.assertEqual(report.amount(value, unit), text)

    def test_the_columns_stand_under_each_other(self):
        def print_all():
            table = report.Table(["pair", "a_longer_name"])
            table.add(report.judge(pair(), measure.Sides([1.0], [2.0])))
            table.add(report.failed("a_longer_name", goals.at_most(1), "broken"))

        lines = output_of(print_all)[1].splitlines()
        self.assertEqual(lines[0].split(), list(report.COLUMNS))
        self.assertEqual(len({re.search(r"(verdict|ok|error)", line).start() for line in lines}), 1)
        self.assertTrue(lines[2].endswith("error: broken"))


class Command(unittest.TestCase):
    """The whole command over a stand-in for programs, builds and the Python environment."""

    def setUp(self):
        patch = mock.patch.multiple(
            run.workshop, configure=lambda: "2.13.0", make_python=lambda: None,
            build=lambda target: self.build_error, logged_clean_build=lambda: self.logged,
            measure_clean_build=lambda: 600.0, machine_facts=lambda libtorch: {"cores": 2})
        patch.start()
        self.addCleanup(patch.stop)
        runner = mock.patch.object(run, "run_program", self.run_program)
        runner.start()
        self.addCleanup(runner.stop)
        self.build_error, self.logged, self.broken = None, None, None

    def run_program(self, name):
        if name == self.broken:
            raise measure.MeasureError(f"{name} is broken")
        factor = 1.0 if not name.endswith(("py", "torchrun")) else 20.0
        names = {series for group in goals.GROUPS for pair in group.pairs
                 for _, series in (pair.ours, pair.theirs)}
        return {series: [factor] for series in names}

    def results(self, *arguments):
        code, out = output_of(run.main, [*arguments, "--json"])
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(lines[0], {"machine": {"cores": 2}})
        return code, {line["name"]: line for line in lines[1:]}

    def test_every_pair_has_a_line_and_short_is_no_failure(self):
        code, results = self.results()
        pairs = [pair.name for group in goals.GROUPS for pair in group.pairs]
        self.assertEqual(list(results), [*pairs, goals.BUILD_NAME])
        self.assertEqual(results["launch_to_first_step"]["verdict"], "ok")
        self.assertEqual(results["launch_trivial"]["verdict"], "short")
        self.assertEqual(code, 0)

    def test_a_name_keeps_the_pairs_that_start_with_it(self):
        self.assertEqual(list(self.results("step_single")[1]),
                         ["step_single_libtorch", "step_single_accelerate"])

    def test_a_pair_that_cannot_be_measured_fails_the_command(self):
        self.broken = "step.py"
        code, results = self.results("step_single")
        self.assertEqual(code, 1)
        self.assertEqual(results["step_single_accelerate"]["verdict"], "error")
        self.assertEqual(results["step_single_accelerate"]["reason"], "step.py is broken")
        self.assertNotEqual(results["step_single_libtorch"]["verdict"], "error")

    def test_a_program_that_does_not_build_is_an_error(self):
        self.build_error = "no such target"
        code, results = self.results("loader")
        self.assertEqual(code, 1)
        self.assertEqual({line["reason"] for line in results.values()}, {"no such target"})

    def test_an_unknown_name_is_refused_with_the_names(self):
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(run.main(["nothing"]), 2)
        self.assertIn('no pair starts with "nothing"; allowed: launch_to_first_step', err.getvalue())

    def test_the_clean_build_is_measured_only_by_its_name(self):
        self.assertEqual(self.results("build")[1][goals.BUILD_NAME]["ours"], 10)
        unlogged = self.results()[1][goals.BUILD_NAME]
        self.assertEqual(unlogged["verdict"], "not measured")
        self.logged = 1800.0
        logged = self.results()[1][goals.BUILD_NAME]
        self.assertEqual((logged["ours"], logged["verdict"]), (30, "short"))


class Goals(unittest.TestCase):
    def test_every_side_names_a_program_and_every_target_exists(self):
        cmake = (BENCH / "CMakeLists.txt").read_text()
        for name in run.programs_of(goals.GROUPS):
            for target in goals.PROGRAMS[name].targets:
                if target != "drivetrain_cli":
                    self.assertIn(f"drivetrain_program({target} ", cmake)

    def test_the_python_programs_exist(self):
        for name, program in goals.PROGRAMS.items():
            for part in program.command:
                if part.endswith(".py"):
                    self.assertTrue(pathlib.Path(part.format(programs=BENCH / "programs")).is_file())

    def test_the_clean_builds_log_is_the_one_that_dev_writes(self):
        dev = (BENCH.parent / "dev").read_text()
        self.assertIn(f"build/{run.workshop.CLEAN_LOG.name}", dev)


if __name__ == "__main__":
    unittest.main()
