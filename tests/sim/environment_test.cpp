// SPDX-License-Identifier: Apache-2.0
// A program that does not link the simulated accelerator, and gets it by its environment.
#include <torch/torch.h>

#include <drivetrain/config.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "elapsed.h"
#include "expect_error.h"
#include "scoped_env.h"

namespace drivetrain {
namespace {

const bool is_set = [] {
  setenv("DRIVETRAIN_SIM_DEVICES", "4", 1);
  setenv("DRIVETRAIN_SIM_MEMORY", "32MiB", 1);
  setenv("DRIVETRAIN_SIM_BANDWIDTH", "64MiB", 1);
  setenv("DRIVETRAIN_SIM_PROTECT", "no", 1);
  return true;
}();

at::Device device(int index) { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

at::Tensor mebibytes(int64_t count) { return torch::ones({count << 20}, torch::kUInt8); }

TEST(SimByEnvironment, IsFoundAndComesBeforeTheCpu) {
  ASSERT_TRUE(is_set);
  clear_accelerator();
  EXPECT_NO_THROW(Config::from_environment());
  const auto accelerator = make_accelerator("sim");
  EXPECT_EQ(accelerator->device_count(), 4);
  EXPECT_EQ(accelerator->total_memory(3), 32 << 20);
  EXPECT_EQ(accelerator->repr(), "sim (communication gloo, 4 devices)");
  if (!torch::cuda::is_available()) {
    EXPECT_EQ(get_accelerator()->name(), "sim");
  }
  const ScopedEnv choice("DRIVETRAIN_ACCELERATOR", "cpu");
  clear_accelerator();
  EXPECT_EQ(get_accelerator()->name(), "cpu");
  clear_accelerator();
}

void print_what(const char* devices) {
  setenv("DRIVETRAIN_SIM_DEVICES", devices, 1);
  try {
    get_accelerator();
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(3);
  }
  std::_Exit(0);
}

TEST(SimByEnvironmentDeathTest, WrongNumbersAndOtherBackendsAreRefused) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(print_what("0"), ::testing::ExitedWithCode(3),
              "DRIVETRAIN_SIM_DEVICES is \"0\"; allowed: a whole number from 1 to 64");
  EXPECT_EXIT(
      {
        c10::register_privateuse1_backend("other");
        print_what("2");
      },
      ::testing::ExitedWithCode(3), "found the PrivateUse1 backend \"other\"");
}

TEST(SimByEnvironment, CopiesTakeTheTimeOfTheirLink) {
  const auto host = mebibytes(8);
  at::Tensor there;
  EXPECT_GE(milliseconds([&] { there = host.to(device(0)); }), 124.0);
  EXPECT_GE(milliseconds([&] { there.cpu(); }), 124.0);
  at::Tensor other;
  EXPECT_GE(milliseconds([&] {
              other = there.to(device(1));
              make_accelerator("sim")->synchronize(1);
            }),
            124.0);
  EXPECT_LT(milliseconds([&] {
              other = there.clone();
              make_accelerator("sim")->synchronize(0);
            }),
            100.0)
      << "within a device there is no link";
}

TEST(SimByEnvironment, ALinkIsSharedByStreamsAndBothWaysAreApart) {
  const auto accelerator = make_accelerator("sim");
  accelerator->set_device(0);
  const auto in = mebibytes(8).pin_memory();
  auto out = mebibytes(8).pin_memory();
  const auto there = torch::ones({8 << 20}, torch::dtype(torch::kUInt8).device(device(0)));
  accelerator->synchronize();
  const auto side = accelerator->Stream();
  EXPECT_GE(milliseconds([&] {
              const auto first = in.to(device(0), /*non_blocking=*/true);
              const auto guard = accelerator->stream(side);
              const auto second = in.to(device(0), /*non_blocking=*/true);
              accelerator->synchronize();
            }),
            248.0);
  EXPECT_LT(milliseconds([&] {
              const auto first = in.to(device(0), /*non_blocking=*/true);
              const auto guard = accelerator->stream(side);
              out.copy_(there, /*non_blocking=*/true);
              accelerator->synchronize();
            }),
            240.0);
}

TEST(SimByEnvironment, MemoryCanBeLeftUnprotected) {
  const auto x = torch::full({3}, 2.0f, device(0));
  make_accelerator("sim")->synchronize(0);
  EXPECT_EQ(static_cast<const float*>(x.data_ptr())[2], 2.0f);
}

}  // namespace
}  // namespace drivetrain
