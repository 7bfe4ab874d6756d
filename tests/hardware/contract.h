// SPDX-License-Identifier: Apache-2.0
// The suite that every backend must pass: contract_*_test.cpp, on each registered backend that has
// a device. A call works where capabilities() says so, and is refused with one typed error where
// not. A backend that is registered before main joins; docs/new-backend.md tells how to run it on
// yours.
#pragma once

#include <torch/types.h>

#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "expect_error.h"

namespace drivetrain {

class Contract : public ::testing::TestWithParam<std::string> {
 protected:
  // Works if `capable`, else is refused with the backend's name.
  template <class Fn>
  void follows(bool capable, Fn&& fn) {
    if (capable) {
      EXPECT_NO_THROW(fn());
      return;
    }
    EXPECT_ERROR(fn(), HardwareError, accelerator->name() + ": ");
  }

  c10::Device here() const { return accelerator->get_current_device(); }
  int last_device() const { return accelerator->device_count() - 1; }
  at::Tensor bytes(int64_t count) const {
    return torch::empty({count}, torch::dtype(torch::kUInt8).device(here()));
  }
  // Long enough on any device that whoever does not wait for it sees an unfinished result:
  // `steps` additions of 1 to a million floats, which end at `start` + `steps` exactly.
  at::Tensor slow_sum(float start, int steps) const {
    auto sum = torch::full({1 << 20}, start, torch::device(here()));
    for (int i = 0; i < steps; ++i) sum = sum + 1;
    return sum;
  }

  std::shared_ptr<BaseAccelerator> accelerator = make_accelerator(GetParam());
  Capabilities can = accelerator->capabilities();
};

}  // namespace drivetrain
