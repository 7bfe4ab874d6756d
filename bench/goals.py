# SPDX-License-Identifier: Apache-2.0
"""What is measured against what, and the goal of each pair: the one table of them.

A side is one series of samples of one program. Sides of one program are timed by turns inside
it and paired block by block; sides of two programs are paired round by round.
"""

import dataclasses

LAUNCH = ("{bin}/drivetrain", "launch", "--num-processes", "2", "--cpu")
TORCHRUN = ("{python}/torchrun", "--nproc-per-node", "2", "--master-port", "{port}")


@dataclasses.dataclass(frozen=True)
class Program:
    """A command, and the CMake targets that it needs."""

    command: tuple
    targets: tuple = ()


@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound on the ratio of the two sides; `margin` is the noise allowed on top of it."""

    ratio: str  # "theirs/ours", "ours/theirs", or "ours-theirs": the difference, in their unit
    bound: str  # ">=" or "<="
    value: float
    margin: float = 0.0

    def __str__(self):
        margin = f" +{self.margin:.0%}" if self.margin else ""
        return f"{self.bound} {self.value:g}{margin}"

    def of(self, ours, theirs):
        if self.ratio == "ours-theirs":
            return ours - theirs
        return theirs / ours if self.ratio == "theirs/ours" else ours / theirs

    def is_met(self, ratio):
        if self.bound == ">=":
            return ratio >= self.value * (1 - self.margin)
        return ratio <= self.value * (1 + self.margin)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sides, each (program, series of its samples), and what is expected of them."""

    name: str
    ours: tuple
    theirs: tuple
    unit: str
    goal: Goal


@dataclasses.dataclass(frozen=True)
class Group:
    """Pairs that share programs. A round runs every program once, by turns."""

    rounds: int
    warmups: int
    pairs: tuple


def times_sooner(value):
    return Goal("theirs/ours", ">=", value)


def times_the_rate(value):
    return Goal("ours/theirs", ">=", value)


def at_most(value, margin=0.0):
    return Goal("ours/theirs", "<=", value, margin)


def at_most_more(value):
    return Goal("ours-theirs", "<=", value)


# Allowed on top of "not slower": medians of equal programs differ by some percent between runs.
NOISE = 0.05

PROGRAMS = {
    "first_step": Program((*LAUNCH, "{bin}/bench_first_step"),
                          ("drivetrain_cli", "bench_first_step")),
    "first_step.py": Program((*TORCHRUN, "{programs}/first_step.py")),
    "trivial": Program((*LAUNCH, "/bin/true"), ("drivetrain_cli",)),
    "trivial.py": Program((*TORCHRUN, "{programs}/trivial.py")),
    "trivial.torchrun": Program((*TORCHRUN, "--no-python", "/bin/true")),
    "step": Program(("{bin}/bench_step",), ("bench_step",)),
    "step.py": Program(("{python}/python", "{programs}/step.py")),
    "ddp_small": Program((*LAUNCH, "{bin}/bench_ddp_step", "small"),
                         ("drivetrain_cli", "bench_ddp_step")),
    "ddp_small.py": Program((*TORCHRUN, "{programs}/ddp_step.py", "small")),
    "ddp_25m": Program((*LAUNCH, "{bin}/bench_ddp_step", "25m"),
                       ("drivetrain_cli", "bench_ddp_step")),
    "ddp_25m.py": Program((*TORCHRUN, "{programs}/ddp_step.py", "25m")),
    "adam_25m": Program(("{bin}/bench_adam", "25m"), ("bench_adam",)),
    "adam_small": Program(("{bin}/bench_adam", "small"), ("bench_adam",)),
    "grad_norm_25m": Program(("{bin}/bench_grad_norm", "25m"), ("bench_grad_norm",)),
    "grad_norm_small": Program(("{bin}/bench_grad_norm", "small"), ("bench_grad_norm",)),
    "memory_timeline": Program(("{bin}/bench_memory_timeline",), ("bench_memory_timeline",)),
    "bookkeeping": Program(("{bin}/bench_bookkeeping",), ("bench_bookkeeping",)),
    "loader": Program(("{bin}/bench_loader",), ("bench_loader",)),
    "loader.py": Program(("{python}/python", "{programs}/loader.py")),
}

GROUPS = (
    # From the start of the launcher to the end of the first optimizer step of rank 0.
    Group(rounds=7, warmups=1, pairs=(
        Pair("launch_to_first_step", ("first_step", "first_step"),
             ("first_step.py", "first_step"), "s", times_sooner(12)),
    )),
    # From the start of the launcher to its end, of two processes that do nothing.
    Group(rounds=7, warmups=1, pairs=(
        Pair("launch_trivial", ("trivial", "wall"), ("trivial.py", "wall"), "s",
             times_sooner(50)),
        Pair("launch_trivial_no_python", ("trivial", "wall"), ("trivial.torchrun", "wall"), "s",
             times_sooner(50)),
    )),
    # One step of an MLP 64-64-10 with AdamW, 32 samples, one process of one thread.
    Group(rounds=5, warmups=0, pairs=(
        Pair("step_single_libtorch", ("step", "ours"), ("step", "libtorch"), "us",
             at_most(0.75)),
        Pair("step_single_accelerate", ("step", "ours"), ("step.py", "accelerate"), "us",
             at_most(0.3)),
    )),
    # One step on 2 ranks of one thread each, gradients averaged, SGD: an MLP 64-256-10, then one
    # of 25 million parameters in three layers.
    Group(rounds=5, warmups=0, pairs=(
        Pair("ddp_step_small_reducer", ("ddp_small", "ours"), ("ddp_small", "reducer"), "us",
             at_most(1, NOISE)),
        Pair("ddp_step_small_accelerate", ("ddp_small", "ours"), ("ddp_small.py", "accelerate"),
             "us", at_most(1, NOISE)),
    )),
    Group(rounds=5, warmups=0, pairs=(
        Pair("ddp_step_25m_reducer", ("ddp_25m", "ours"), ("ddp_25m", "reducer"), "us",
             at_most(1, NOISE)),
        Pair("ddp_step_25m_accelerate", ("ddp_25m", "ours"), ("ddp_25m.py", "accelerate"), "us",
             at_most(1, NOISE)),
    )),
    # One AdamW step on float32, all cores: 25 million parameters in 12 tensors, then 42 thousand in
    # 20. The copy moves as many bytes as a step must, half of them reads.
    Group(rounds=5, warmups=0, pairs=(
        Pair("adam_25m_class", ("adam_25m", "ours"), ("adam_25m", "class"), "us", at_most(0.5)),
        Pair("adam_25m_aten", ("adam_25m", "ours"), ("adam_25m", "aten"), "us",
             at_most(1, NOISE)),
        Pair("adam_25m_copy", ("adam_25m", "ours"), ("adam_25m", "copy"), "us", at_most(1.4)),
    )),
    Group(rounds=5, warmups=0, pairs=(
        Pair("adam_small_class", ("adam_small", "ours"), ("adam_small", "class"), "us",
             at_most(0.5)),
        Pair("adam_small_aten", ("adam_small", "ours"), ("adam_small", "aten"), "us",
             at_most(1, NOISE)),
    )),
    # clip_grad_norm_ on gradients of those sizes: where they shrink, and where they need not.
    Group(rounds=5, warmups=0, pairs=(
        Pair("grad_norm_25m_clipped", ("grad_norm_25m", "ours_clipped"),
             ("grad_norm_25m", "libtorch_clipped"), "us", at_most(1, NOISE)),
        Pair("grad_norm_25m_within", ("grad_norm_25m", "ours_within"),
             ("grad_norm_25m", "libtorch_within"), "us", at_most(0.75)),
    )),
    Group(rounds=5, warmups=0, pairs=(
        Pair("grad_norm_small_clipped", ("grad_norm_small", "ours_clipped"),
             ("grad_norm_small", "libtorch_clipped"), "us", at_most(0.5)),
        Pair("grad_norm_small_within", ("grad_norm_small", "ours_within"),
             ("grad_norm_small", "libtorch_within"), "us", at_most(0.5)),
    )),
    # One step of an MLP of 50 layers of 128 with AdamW, 256 rows, all cores: what watching costs.
    Group(rounds=5, warmups=0, pairs=(
        Pair("memory_timeline", ("memory_timeline", "watched"), ("memory_timeline", "plain"), "us",
             at_most(1, NOISE)),
    )),
    # What the loss scale of fp16, and the accumulation scope, add to a step; the ratio is the
    # difference in microseconds.
    Group(rounds=5, warmups=0, pairs=(
        Pair("loss_scale_more", ("bookkeeping", "scaled"), ("bookkeeping", "plain"), "us",
             at_most_more(3)),
        Pair("accumulate_more", ("bookkeeping", "scoped"), ("bookkeeping", "plain"), "us",
             at_most_more(1)),
    )),
    # One epoch of shuffled batches of 64 MNIST-sized samples, read one by one and collated; each
    # side with as many workers as the other.
    Group(rounds=5, warmups=0, pairs=(
        Pair("loader_no_workers", ("loader", "no_workers"), ("loader.py", "no_workers"),
             "samples/s", times_the_rate(2)),
        Pair("loader_2_workers", ("loader", "2_workers"), ("loader.py", "2_workers"),
             "samples/s", times_the_rate(5)),
    )),
)

# A clean build and all tests, lint included, from an empty build folder.
BUILD_NAME = "build_and_tests"
BUILD_GOAL_MINUTES = 25
