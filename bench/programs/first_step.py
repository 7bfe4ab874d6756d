# SPDX-License-Identifier: Apache-2.0
"""From nothing to the first optimizer step with Accelerate; the twin of first_step.cpp."""

import json
import os
import time

import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
data, target = torch.randn(32, 64), torch.randint(10, (32,))
loss = nn.functional.cross_entropy(model(data), target)
accelerator.backward(loss)
optimizer.step()
if accelerator.is_main_process:
    print("BENCH", json.dumps({"at": {"first_step": time.monotonic()}}), flush=True)
# Not by destroy_process_group(): now and then a thread of Gloo aborts the process in it.
torch.distributed.barrier()
os._exit(0)
