# SPDX-License-Identifier: Apache-2.0
"""Timing in blocks of steps; the twin of blocks.h."""

import json
import time


def time_blocks(step, warmups, blocks, steps):
    """Microseconds a step, once a block."""
    for _ in range(warmups):
        step()
    samples = []
    for _ in range(blocks):
        started = time.perf_counter()
        for _ in range(steps):
            step()
        samples.append((time.perf_counter() - started) / steps * 1e6)
    return samples


def report(**series):
    print("BENCH", json.dumps({"samples": series}), flush=True)
