#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Drivetrain against LibTorch, PyTorch and Accelerate, side by side.

usage: run.py [NAME] [--json]

NAME keeps the pairs whose name starts with it. The two sides of a pair run by turns; each figure
is the median of its samples, and the ratio is the median over samples that were taken together.
A line a pair: name, ours, theirs, ratio, goal, and ok, short or error. Ratios are theirs/ours
where the goal is a time ("12 times sooner"), ours/theirs where it is a share or a rate; the table
is in goals.py. --json gives a JSON object a line: facts of the machine, then every pair with its
unit, all samples, and their least, median and greatest.

The clean build takes long: without its name, its line is what the last one took, as `./dev test`
(from an empty build folder) or `./dev bench build` noted it.

Exit code: 0 if every pair was measured, whether or not it met its goal (a figure of a busy
machine must not fail a script: read the verdicts); 1 if one could not be; 2 for a wrong NAME.
"""

import argparse
import os
import sys

import goals
import measure
import report
import workshop


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="./dev bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__.split("\n\n", 2)[2])
    parser.add_argument("name", nargs="?", default="", metavar="NAME")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def select(prefix):
    """The groups with only the pairs whose name starts with `prefix`."""
    chosen = []
    for group in goals.GROUPS:
        pairs = tuple(pair for pair in group.pairs if pair.name.startswith(prefix))
        if pairs:
            chosen.append(goals.Group(group.rounds, group.warmups, pairs))
    return chosen


def programs_of(groups):
    return {name for group in groups for pair in group.pairs
            for name, _ in (pair.ours, pair.theirs)}


def build_programs(names):
    """{program: why it cannot be built}."""
    targets = {target for name in names for target in goals.PROGRAMS[name].targets}
    reasons = {target: workshop.build(target) for target in sorted(targets)}
    failures = {}
    for name in names:
        for target in goals.PROGRAMS[name].targets:
            if reasons[target]:
                failures[name] = reasons[target]
    return failures


def run_program(name):
    places = {"bin": workshop.RELEASE / "bin", "python": workshop.PYTHON / "bin",
              "programs": workshop.ROOT / "bench" / "programs", "port": measure.free_port()}
    return measure.run_command([part.format(**places) for part in goals.PROGRAMS[name].command])


def results_of(group, failures):
    rounds = measure.run_rounds(group, run_program, failures)
    for pair in group.pairs:
        try:
            yield report.judge(pair, measure.pair_up(pair, rounds, failures))
        except measure.MeasureError as error:
            yield report.failed(pair.name, pair.goal, str(error))


def build_result(is_asked_for):
    """The line of the clean build."""
    goal = goals.at_most(goals.BUILD_GOAL_MINUTES)
    try:
        seconds = workshop.measure_clean_build() if is_asked_for else workshop.logged_clean_build()
    except workshop.WorkshopError as error:
        return report.failed(goals.BUILD_NAME, goal, str(error))
    if seconds is None:
        return report.skipped(goals.BUILD_NAME, goal, "takes long; run ./dev bench build")
    return report.judge_alone(goals.BUILD_NAME, goal, seconds / 60, "min")


def warn_if_busy():
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        print(f"bench: the machine is busy (load {load:.1f} on {cores} cores): figures will be "
              "off", file=sys.stderr)


def measure_all(groups, with_build, build_asked_for, as_json):
    """Prints a result a line; returns all of them."""
    print("bench: preparing build/bench-python and build/release", file=sys.stderr)
    libtorch = workshop.configure()
    failures = {}
    if groups:
        workshop.make_python()
        failures = build_programs(programs_of(groups))
    warn_if_busy()
    names = [pair.name for group in groups for pair in group.pairs] + [goals.BUILD_NAME]
    out = report.JsonLines(workshop.machine_facts(libtorch)) if as_json else report.Table(names)
    results = []
    for group in groups:
        for result in results_of(group, failures):
            out.add(result)
            results.append(result)
    if with_build:
        results.append(build_result(build_asked_for))
        out.add(results[-1])
    return results


def main(arguments):
    options = parse_arguments(arguments)
    groups = select(options.name)
    with_build = goals.BUILD_NAME.startswith(options.name)
    if not groups and not with_build:
        known = [pair.name for group in goals.GROUPS for pair in group.pairs] + [goals.BUILD_NAME]
        print(f"bench: no pair starts with \"{options.name}\"; allowed: {', '.join(known)}",
              file=sys.stderr)
        return 2
    try:
        results = measure_all(groups, with_build, bool(options.name), options.json)
    except workshop.WorkshopError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 1 if any(result["verdict"] == "error" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
