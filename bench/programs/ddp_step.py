# SPDX-License-Identifier: Apache-2.0
"""A data-parallel step with Accelerate; the twin of ddp_step.cpp.

usage: ddp_step.py small|25m
"""

import os
import sys

import blocks
import torch
from accelerate import Accelerator
from torch import nn

# Layer widths, samples a rank, warm-up steps, blocks, steps a block.
SIZES = {
    "small": ((64, 256, 10), 32, 50, 20, 50),
    "25m": ((1024, 4096, 4096, 1024), 32, 3, 6, 3),
}


def mlp(widths):
    layers = []
    for fan_in, fan_out in zip(widths, widths[1:]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


widths, rows, warmups, num_blocks, steps = SIZES[sys.argv[1]]
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = mlp(widths)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
torch.manual_seed(1 + accelerator.process_index)
data, target = torch.randn(rows, widths[0]), torch.randint(widths[-1], (rows,))


def step():
    loss = nn.functional.cross_entropy(model(data), target)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


samples = blocks.time_blocks(step, warmups, num_blocks, steps)
if accelerator.is_main_process:
    blocks.report(accelerate=samples)
# Not by destroy_process_group(): now and then a thread of Gloo aborts the process in it.
torch.distributed.barrier()
os._exit(0)
