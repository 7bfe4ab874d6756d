# SPDX-License-Identifier: Apache-2.0
"""Reading and collating batches with torch.utils.data; the twin of loader.cpp."""

import time

import blocks
import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 16384
EPOCHS = 5


def epoch_rate(loader):
    """Samples a second over one epoch, its start included."""
    started = time.perf_counter()
    count = sum(len(target) for _, target in loader)
    seconds = time.perf_counter() - started
    if count != SAMPLES:
        raise RuntimeError(f"{count} samples instead of {SAMPLES}")
    return count / seconds


def rates(num_workers):
    """Of warm epochs: workers stay alive between them."""
    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=num_workers,
                        persistent_workers=num_workers > 0)
    epoch_rate(loader)
    return [epoch_rate(loader) for _ in range(EPOCHS)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,)))
    blocks.report(**{"no_workers": rates(0), "2_workers": rates(2)})
