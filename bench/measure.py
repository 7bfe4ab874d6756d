# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of a group by turns and collects their samples.

A program reports by lines that hold `BENCH {...}`, whatever a launcher puts before it:
{"samples": {series: [numbers]}} for what it timed itself, {"at": {series: seconds}} for a moment
on CLOCK_MONOTONIC, which counts from the start of the program's command. The series "wall" is
the time of the whole command.
"""

import dataclasses
import json
import os
import signal
import socket
import statistics
import subprocess
import time

MARK = "BENCH {"
TIMEOUT_SECONDS = 600
# A launcher's variables must not reach the programs, and both sides run on the CPU.
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
           "OMP_NUM_THREADS")
FOREIGN_PREFIXES = ("DRIVETRAIN_", "ACCELERATE_", "TORCHELASTIC_", "OMPI_", "PMI_", "SLURM_")


class MeasureError(Exception):
    """A program that could not be run or reported nothing that serves."""


@dataclasses.dataclass
class Sides:
    """Samples of both sides; the i-th of each belong together."""

    ours: list
    theirs: list


def environment():
    kept = {name: value for name, value in os.environ.items()
            if name not in FOREIGN and not name.startswith(FOREIGN_PREFIXES)}
    return kept | {"DRIVETRAIN_CPU": "1", "ACCELERATE_USE_CPU": "true"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def parse_record(text):
    try:
        return json.loads(text[len(MARK) - 1:])
    except ValueError as error:
        raise MeasureError(f"cannot read \"{text[:80]}\": {error}")


def parse_samples(output, started, ended):
    """All series that a run reported, in the order of its lines."""
    series = {"wall": [ended - started]}
    for line in output.splitlines():
        where = line.find(MARK)
        if where < 0:
            continue
        record = parse_record(line[where:])
        for name, values in record.get("samples", {}).items():
            series.setdefault(name, []).extend(values)
        for name, moment in record.get("at", {}).items():
            series.setdefault(name, []).append(moment - started)
    return series


def tail(text, lines=8):
    return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())


def end_group(process):
    """Ends a command with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def run_command(command, timeout=TIMEOUT_SECONDS):
    """Runs a command to its end and returns the series it reported."""
    started = time.monotonic()
    try:
        process = subprocess.Popen(command, env=environment(), text=True, start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
    except OSError as error:
        raise MeasureError(f"{command[0]}: {error.strerror}; build it, or see above why not")
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end_group(process)
        raise MeasureError(f"{' '.join(command)}: not done after {timeout} s")
    except BaseException:
        end_group(process)
        raise
    ended = time.monotonic()
    if process.returncode != 0:
        raise MeasureError(f"{' '.join(command)}: exit code {process.returncode}: {tail(output)}")
    return parse_samples(output, started, ended)


def run_rounds(group, run_program, failures):
    """{program: one series map a round}. A program that fails is left out from then on."""
    programs = list(dict.fromkeys(
        name for pair in group.pairs for name, _ in (pair.ours, pair.theirs)))
    results = {name: [] for name in programs}
    for index in range(-group.warmups, group.rounds):
        for name in programs:
            if name in failures:
                continue
            try:
                series = run_program(name)
            except MeasureError as error:
                failures[name] = str(error)
                continue
            if index >= 0:
                results[name].append(series)
    return results


def series_of(rounds, side):
    """The samples of one side, a list a round."""
    program, name = side
    for series in rounds[program]:
        if not series.get(name):
            raise MeasureError(f"{program}: reported no \"{name}\"; it has {sorted(series)}")
    return [series[name] for series in rounds[program]]


def pair_up(pair, rounds, failures):
    """The samples of a pair: block by block within one program, else one median a round."""
    for program, _ in (pair.ours, pair.theirs):
        if program in failures:
            raise MeasureError(failures[program])
    ours, theirs = series_of(rounds, pair.ours), series_of(rounds, pair.theirs)
    if pair.ours[0] != pair.theirs[0]:
        return Sides([statistics.median(s) for s in ours], [statistics.median(s) for s in theirs])
    for mine, other in zip(ours, theirs):
        if len(mine) != len(other):
            raise MeasureError(f"{pair.ours[0]}: {len(mine)} samples against {len(other)}")
    return Sides(sum(ours, []), sum(theirs, []))
