# SPDX-License-Identifier: Apache-2.0
"""From samples to a verdict, and to the lines that are printed."""

import json
import statistics

COLUMNS = ("name", "ours", "theirs", "ratio", "goal", "verdict")


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def judge(pair, sides):
    """The result of a pair: medians of each side, and the median ratio of paired samples."""
    ratios = [pair.goal.of(ours, theirs) for ours, theirs in zip(sides.ours, sides.theirs)]
    ratio = statistics.median(ratios)
    return {
        "name": pair.name,
        "ours": statistics.median(sides.ours),
        "theirs": statistics.median(sides.theirs),
        "ratio": ratio,
        "goal": str(pair.goal),
        "verdict": "ok" if pair.goal.is_met(ratio) else "short",
        "unit": pair.unit,
        "ratio_is": pair.goal.ratio,
        "spread": {"ours": spread(sides.ours), "theirs": spread(sides.theirs),
                   "ratio": spread(ratios)},
        "samples": {"ours": sides.ours, "theirs": sides.theirs},
    }


def judge_alone(name, goal, value, unit):
    """The result of one figure that is compared with nothing but its goal."""
    return {"name": name, "ours": value, "theirs": None, "ratio": None, "goal": str(goal),
            "verdict": "ok" if goal.is_met(value) else "short", "unit": unit}


def failed(name, goal, reason):
    return {"name": name, "ours": None, "theirs": None, "ratio": None, "goal": str(goal),
            "verdict": "error", "reason": reason}


def skipped(name, goal, reason):
    return failed(name, goal, reason) | {"verdict": "not measured"}


def digits(value):
    """Three significant digits, never an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def amount(value, unit):
    if value is None:
        return "-"
    if unit == "samples/s" and value >= 999.5:
        return f"{digits(value / 1000)}k {unit}"
    if unit == "us" and value >= 999.5:
        return f"{digits(value / 1000)} ms"
    if unit == "s" and value < 0.1:
        return f"{digits(value * 1000)} ms"
    return f"{digits(value)} {unit}"


def cells(result):
    unit = result.get("unit", "")
    ratio = result["ratio"]
    return (result["name"], amount(result["ours"], unit), amount(result["theirs"], unit),
            "-" if ratio is None else digits(ratio), result["goal"],
            result["verdict"] + (f": {result['reason']}" if result.get("reason") else ""))


def table_line(row, widths):
    """Names to the left, figures to the right."""
    columns = [row[0].ljust(widths[0])]
    columns += [cell.rjust(width) for cell, width in zip(row[1:5], widths[1:5])]
    return "  ".join([*columns, row[5]])


class Table:
    """Prints each result as it comes, in columns wide enough for any."""

    def __init__(self, names):
        self.widths = (max(map(len, (*names, "name"))), 15, 15, 6, 9)
        print(table_line(COLUMNS, self.widths), flush=True)

    def add(self, result):
        print(table_line(cells(result), self.widths), flush=True)


class JsonLines:
    """One JSON object a line: the machine, then every result with all its samples."""

    def __init__(self, machine):
        print(json.dumps({"machine": machine}), flush=True)

    def add(self, result):
        print(json.dumps(result), flush=True)
