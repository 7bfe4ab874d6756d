// SPDX-License-Identifier: Apache-2.0
// What makes the models of all ranks one model: the same parameters, and the same values in them.
#pragma once

#include <drivetrain/comm.h>

#include <string_view>

#include "parallel/gradient_chunks.h"

namespace drivetrain::parallel {

// Each tensor once, under the first of its names; undefined ones left out.
NamedTensors distinct(const NamedTensors& tensors);

// Collective. Blocks. Throws ConfigError on every rank, naming the first rank and tensor that
// differ, unless names, shapes, strides, types and requires_grad are those of rank 0. `what` is
// "parameter" or "buffer".
void check_same_everywhere(const World& world, const NamedTensors& tensors, std::string_view what);

// Collective. Blocks. The root's values to all, in messages of at most about 256 MiB.
void replicate(const World& world, const NamedTensors& tensors, int root);

}  // namespace drivetrain::parallel
