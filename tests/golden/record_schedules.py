#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what PyTorch's and transformers' learning-rate schedules give, as schedules.txt.

usage: record_schedules.py > schedules.txt

tests/training/schedule_cases.cpp makes the same schedules, by the same names. An optimizer of two
groups takes 200 steps. A line is a case, a series (lr0: of group 0, before the first step and after
each) and its values, "v*n" for n equal ones, or the series that has the same; momentum is betas[0] where
the class has betas.
"""

import math
import sys
import warnings

import torch
import transformers
from torch.optim import lr_scheduler as s
from transformers import optimization as t

STEPS = 200
LRS = (0.1, 0.02)
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=LRS[0], momentum=0.9),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=LRS[0], momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, lr=LRS[0]),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=LRS[0]),
}


def metric(step):
    """By operations that give the same bits in every language."""
    return 1 / (1 + step / 7) + (step * 37 % 11) / 100


def halves(n):
    return 1 / (1 + n // 30)


CASES = {}  # name -> (what makes the schedule, optimizer, sign of the metric or 0, lrs)


def case(name, make, optimizer="sgd", sign=0, lrs=LRS):
    assert name not in CASES
    CASES[name] = (make, optimizer, sign, lrs)


case("lambda_reference", lambda o: s.LambdaLR(o, lambda n: 1 - n / 10), lrs=(1.0, 0.5))
case("lambda_a_group", lambda o: s.LambdaLR(o, [lambda n: 0.95 ** n, halves]))
case("multiplicative", lambda o: s.MultiplicativeLR(o, lambda n: 0.97))
case("multiplicative_a_group",
     lambda o: s.MultiplicativeLR(o, [lambda n: 1 - 1 / (n + 3), lambda n: 0.99]))
case("step", lambda o: s.StepLR(o, 30))
case("step_fast", lambda o: s.StepLR(o, 7, 0.9), "adamw")
case("multistep", lambda o: s.MultiStepLR(o, [80, 30, 80, 150]))
case("multistep_none", lambda o: s.MultiStepLR(o, []))
case("multistep_from_0", lambda o: s.MultiStepLR(o, [0, 5, 120], 0.5))
case("constant", lambda o: s.ConstantLR(o))
case("constant_long", lambda o: s.ConstantLR(o, 0.25, 40))
case("linear", lambda o: s.LinearLR(o))
case("linear_long", lambda o: s.LinearLR(o, 0.1, 0.9, 100))
case("linear_to_0", lambda o: s.LinearLR(o, 1.0, 0.0, 60))
case("exponential", lambda o: s.ExponentialLR(o, 0.99), "adam")
case("polynomial", lambda o: s.PolynomialLR(o))
case("polynomial_steep", lambda o: s.PolynomialLR(o, 150, 2.5))
case("polynomial_root", lambda o: s.PolynomialLR(o, 180, 0.5))
case("cosine", lambda o: s.CosineAnnealingLR(o, 50))
case("cosine_once", lambda o: s.CosineAnnealingLR(o, 200, 1e-3))
case("cosine_short", lambda o: s.CosineAnnealingLR(o, 7, 1e-3))
case("cosine_shortest", lambda o: s.CosineAnnealingLR(o, 1))
case("restarts", lambda o: s.CosineAnnealingWarmRestarts(o, 13))
case("restarts_longer", lambda o: s.CosineAnnealingWarmRestarts(o, 10, 2, 1e-4))
case("restarts_by_3", lambda o: s.CosineAnnealingWarmRestarts(o, 1, 3))

case("one_cycle", lambda o: s.OneCycleLR(o, 0.5, STEPS))
case("one_cycle_linear",
     lambda o: s.OneCycleLR(o, [0.5, 0.2], STEPS, anneal_strategy="linear",
                            base_momentum=[0.7, 0.8], max_momentum=[0.9, 0.99]), "adamw")
case("one_cycle_three_phase",
     lambda o: s.OneCycleLR(o, [0.5, 0.2], epochs=10, steps_per_epoch=21, three_phase=True,
                            div_factor=10, final_div_factor=100), "adam")
case("one_cycle_three_phase_linear",
     lambda o: s.OneCycleLR(o, 1.0, 230, pct_start=0.2, three_phase=True, anneal_strategy="linear",
                            cycle_momentum=False))
case("one_cycle_falls", lambda o: s.OneCycleLR(o, 0.3, STEPS, pct_start=0.0), "rmsprop")

case("cyclic", lambda o: s.CyclicLR(o, 0.01, 0.1, 20))
case("cyclic_2", lambda o: s.CyclicLR(o, [0.01, 0.02], [0.1, 0.3], 15, 8, "triangular2",
                                      base_momentum=0.7, max_momentum=0.95), "adamw")
case("cyclic_exp", lambda o: s.CyclicLR(o, 0.01, 0.1, 11, 30, "exp_range", gamma=0.99), "adam")
case("cyclic_saw", lambda o: s.CyclicLR(o, 0.01, 0.1, 10, 0), "rmsprop")
case("cyclic_own_by_cycle",
     lambda o: s.CyclicLR(o, 0.01, 0.1, 9, scale_fn=lambda x: 1 / (2 + x), scale_mode="cycle"))
case("cyclic_own_by_epoch",
     lambda o: s.CyclicLR(o, 0.01, 0.1, 9, scale_fn=lambda x: 1 / (2 + x),
                          scale_mode="iterations", cycle_momentum=False), "adamw")

case("sequential",
     lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 20), s.CosineAnnealingLR(o, 180)], [20]))
case("sequential_three",
     lambda o: s.SequentialLR(o, [s.ConstantLR(o, 0.1, 9), s.ExponentialLR(o, 0.95),
                                  s.StepLR(o, 10, 0.5)], [12, 100]))
case("sequential_four",
     lambda o: s.SequentialLR(o, [s.PolynomialLR(o, 30), s.MultiStepLR(o, [0, 7]),
                                  s.MultiplicativeLR(o, lambda n: 1.001),
                                  s.CosineAnnealingWarmRestarts(o, 10, 2)], [25, 60, 110]))
case("sequential_skips",
     lambda o: s.SequentialLR(o, [s.StepLR(o, 3), s.LambdaLR(o, lambda n: 0.95 ** n),
                                  s.ConstantLR(o), s.LinearLR(o)], [0, 50, 50]))
case("sequential_one_cycle",
     lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.1), s.OneCycleLR(o, 0.4, 120),
                                  s.ExponentialLR(o, 0.9)], [10, 130]), "adamw")
case("sequential_cyclic_first",
     lambda o: s.SequentialLR(o, [s.CyclicLR(o, 0.01, 0.1, 20), s.ExponentialLR(o, 0.98)], [90]))

case("chained", lambda o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 20), s.ExponentialLR(o, 0.97)]))
case("chained_cosine",
     lambda o: s.ChainedScheduler([s.LinearLR(o, 0.2, 1.0, 30), s.CosineAnnealingLR(o, 70)]))
case("chained_three",
     lambda o: s.ChainedScheduler([s.MultiplicativeLR(o, lambda n: 0.99), s.StepLR(o, 40, 0.5),
                                   s.MultiStepLR(o, [10, 20], 2.0), s.PolynomialLR(o, 170)]))
case("chained_sequential",
     lambda o: s.ChainedScheduler([s.SequentialLR(o, [s.ConstantLR(o, 0.5, 4), s.StepLR(o, 9)],
                                                  [30]), s.ExponentialLR(o, 0.99)]))
case("sequential_chained",
     lambda o: s.SequentialLR(o, [s.ChainedScheduler([s.ConstantLR(o, 0.5, 4), s.StepLR(o, 9)]),
                                  s.ExponentialLR(o, 0.99)], [40]))

case("plateau", lambda o: s.ReduceLROnPlateau(o), sign=1)
case("plateau_max",
     lambda o: s.ReduceLROnPlateau(o, "max", 0.5, 3, 0.01, "abs", 5, [0.001, 0.0005]), sign=-1)
case("plateau_max_rel",
     lambda o: s.ReduceLROnPlateau(o, "max", 0.7, 2, 0.05, cooldown=2), "adamw", sign=1)
case("plateau_abs",
     lambda o: s.ReduceLROnPlateau(o, factor=0.3, patience=0, threshold=0.02,
                                   threshold_mode="abs", min_lr=1e-6, eps=1e-5), sign=1)

case("get_constant", lambda o: t.get_constant_schedule(o))
case("get_constant_warmup", lambda o: t.get_constant_schedule_with_warmup(o, 33))
case("get_linear", lambda o: t.get_linear_schedule_with_warmup(o, 20, 150))
case("get_linear_at_once", lambda o: t.get_linear_schedule_with_warmup(o, 0, 200))
case("get_cosine", lambda o: t.get_cosine_schedule_with_warmup(o, 20, 190))
case("get_cosine_waves", lambda o: t.get_cosine_schedule_with_warmup(o, 11, 150, 1.7))
case("get_hard_restarts",
     lambda o: t.get_cosine_with_hard_restarts_schedule_with_warmup(o, 20, 180, 3))
case("get_hard_restarts_one",
     lambda o: t.get_cosine_with_hard_restarts_schedule_with_warmup(o, 5, 200))
case("get_polynomial", lambda o: t.get_polynomial_decay_schedule_with_warmup(o, 20, 180))
case("get_polynomial_steep",
     lambda o: t.get_polynomial_decay_schedule_with_warmup(o, 10, 150, 1e-3, 2.0), "adamw")
case("get_inverse_sqrt", lambda o: t.get_inverse_sqrt_schedule(o, 25))
case("get_inverse_sqrt_scale", lambda o: t.get_inverse_sqrt_schedule(o, 10, 50))


def momentum(group):
    return group["betas"][0] if "betas" in group else group["momentum"]


def packed(values):
    """'v' or 'v*n' for each run of equal values; repr() gives the bits back."""
    runs = []
    for value in values:
        if runs and runs[-1][0] == value and math.copysign(1, runs[-1][0]) == math.copysign(1, value):
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return " ".join(f"{value!r}" if n == 1 else f"{value!r}*{n}" for value, n in runs)


def record(name, make, kind, sign, lrs):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in lrs]
    optimizer = OPTIMIZERS[kind](groups)
    schedule = make(optimizer)
    series = {}
    for step in range(STEPS + 1):
        if step > 0:
            optimizer.step()
            schedule.step(*([sign * metric(step)] if sign else []))
        for i, group in enumerate(optimizer.param_groups):
            series.setdefault(f"lr{i}", []).append(float(group["lr"]))
            series.setdefault(f"momentum{i}", []).append(float(momentum(group)))
    printed = {}
    for key, values in series.items():
        if key.startswith("lr") or len(set(values)) > 1:
            text = packed(values)
            print(name, key, printed.get(text, text))
            printed.setdefault(text, key)


def main():
    warnings.simplefilter("ignore")
    print("# SPDX-License-Identifier: Apache-2.0")
    print(f"# Recorded by record_schedules.py with torch {torch.__version__.split('+')[0]} and "
          f"transformers {transformers.__version__}.")
    for name, arguments in CASES.items():
        record(name, *arguments)
    print(f"{len(CASES)} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
