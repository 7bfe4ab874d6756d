# SPDX-License-Identifier: Apache-2.0
"""Prints the values that tests/hardware/cpu_test.cpp expects of seed 42 (recorded with torch 2.13.0)."""
import torch

torch.manual_seed(42)
print("randn", torch.randn(5).tolist())
torch.manual_seed(42)
print("rand", torch.rand(3).tolist())
print("state bytes", torch.get_rng_state().numel())
