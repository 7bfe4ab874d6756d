// SPDX-License-Identifier: Apache-2.0
// The instruction sets of this machine, for tests that run on each.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hardware/kernels/cpu_level.h"

namespace drivetrain::kernels {

inline std::vector<CpuLevel> levels_here() {
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : kCpuLevels)
    if (why_lacking(level).empty()) levels.push_back(level);
  return levels;
}

inline std::string name_of_level(const testing::TestParamInfo<CpuLevel>& info) {
  return name_of(info.param);
}

// The number of LibTorch's threads for the life of the object.
class ScopedThreads {
 public:
  explicit ScopedThreads(int threads) : previous_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~ScopedThreads() { at::set_num_threads(previous_); }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  int previous_;
};

// Bit for bit, NaNs included.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = a.element_size() == 4 ? at::kInt : at::kShort;
  return at::equal(a.contiguous().view(bits), b.contiguous().view(bits));
}

}  // namespace drivetrain::kernels
