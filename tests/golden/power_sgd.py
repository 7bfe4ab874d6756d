#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what PyTorch's PowerSGD hooks give on two Gloo ranks, as tests/parallel/power_sgd_golden.h.

usage: power_sgd.py > ../parallel/power_sgd_golden.h

Each case is one matrix parameter W (8, 6) and one vector b (6): the gradient of rank r in step s is
G(r, s)[i][j] = sin(1 + i + 7 j + 3 r + 5 s) and g(r, s)[j] = cos(j + r + 2 s), so that a test can
make the same ones. Printed: the gradients of W and b after the hook, from the third step on, the first
that is compressed.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

STEPS = 5
COMMON = {"start_powerSGD_iter": 2, "min_compression_rate": 1}
CASES = {
    "kRankOne": (powerSGD_hook.powerSGD_hook, {"matrix_approximation_rank": 1}),
    "kRankTwo": (powerSGD_hook.powerSGD_hook, {"matrix_approximation_rank": 2, "random_seed": 42}),
    "kRankThree": (powerSGD_hook.powerSGD_hook, {"matrix_approximation_rank": 3}),
    "kNoWarmStart": (powerSGD_hook.powerSGD_hook, {"warm_start": False, "random_seed": 7}),
    "kNoErrorFeedback": (powerSGD_hook.powerSGD_hook, {"use_error_feedback": False}),
    "kBatched": (powerSGD_hook.batched_powerSGD_hook, {}),
}


orthogonalize_batch = powerSGD_hook._orthogonalize


def orthogonalize(matrices, epsilon=0):
    """As of torch 2.13 the batched hook hands over one matrix where a batch of them is wanted."""
    orthogonalize_batch(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


powerSGD_hook._orthogonalize = orthogonalize


def gradients(rank, step):
    i = torch.arange(8, dtype=torch.float64).unsqueeze(1)
    j = torch.arange(6, dtype=torch.float64)
    matrix = torch.sin(1 + i + 7 * j + 3 * rank + 5 * step)
    return matrix.float(), torch.cos(j + rank + 2 * step).float()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(8, 6))
        self.b = torch.nn.Parameter(torch.zeros(6))

    def forward(self, matrix, vector):
        return (self.w * matrix).sum() + (self.b * vector).sum()


def run(rank, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    lines = []
    for name, (hook, options) in CASES.items():
        model = torch.nn.parallel.DistributedDataParallel(Model())
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, **COMMON, **options), hook)
        values = []
        for step in range(STEPS):
            model.zero_grad()
            model(*gradients(rank, step)).backward()
            if step < 2:
                continue
            values += model.module.w.grad.flatten().tolist() + model.module.b.grad.tolist()
        rows = [", ".join(f"{v:.9g}" for v in values[k:k + 7]) for k in range(0, len(values), 7)]
        lines.append(f"constexpr double {name}[] = {{\n    " + ",\n    ".join(rows) + "};\n")
    if rank == 0:
        with open(path, "w") as out:
            out.write("\n".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    path = f"/tmp/power_sgd_golden.{os.getpid()}"
    mp.spawn(run, (path,), nprocs=2)
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Recorded by tests/golden/power_sgd.py with torch {torch.__version__.split('+')[0]}.")
    print("#pragma once\n\nnamespace drivetrain::parallel::golden {\n")
    print("// clang-format off\n" + open(path).read() + "// clang-format on\n")
    print("}  // namespace drivetrain::parallel::golden")
    os.remove(path)
