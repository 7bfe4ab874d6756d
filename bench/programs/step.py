# SPDX-License-Identifier: Apache-2.0
"""A step of a tiny MLP with Accelerate; the twin of step.cpp."""

import blocks
import torch
from accelerate import Accelerator
from torch import nn

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
data, target = torch.randn(32, 64), torch.randint(10, (32,))


def step():
    loss = nn.functional.cross_entropy(model(data), target)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


blocks.report(accelerate=blocks.time_blocks(step, warmups=300, blocks=20, steps=100))
