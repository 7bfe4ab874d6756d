// SPDX-License-Identifier: Apache-2.0
// The order of an epoch: a pure function of (seed, epoch), the same on every rank and platform.
#pragma once

#include <cstdint>
#include <vector>

namespace drivetrain::data {

// A well mixed number from a chain of others (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b = 0);

// 0 .. n-1 in random order: Fisher-Yates over SplitMix64, drawn without bias (Lemire, 2019).
std::vector<int64_t> permutation(uint64_t seed, uint64_t epoch, int64_t n);

}  // namespace drivetrain::data
