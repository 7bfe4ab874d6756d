// SPDX-License-Identifier: Apache-2.0
// float32 to bfloat16, up or down by chance (Gupta et al. 2015, 1502.02551; for training in
// bfloat16 Zamirai et al. 2020, 2010.06192).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace drivetrain::precision {

// Rounds from[i] (float32) into to[i] (bfloat16), of one shape, on one device. A value between two
// of bfloat16 becomes either, with probabilities that make the mean exact; infinity and NaN stay.
// The outcome is a function of `seed`, the values, i, and the place of each element in row-major
// order: the same on every device and with any number of threads.
void round_stochastically(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from,
                          uint64_t seed);

}  // namespace drivetrain::precision
