// SPDX-License-Identifier: Apache-2.0
// What the host must not do: touch device memory, mix devices, go on in a child of fork.
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <csignal>

#include "devices.h"
#include "expect_error.h"

#include <sys/wait.h>
#include <unistd.h>

namespace drivetrain::sim {
namespace {

class SimProtection : public ::testing::Test {
 protected:
  SimProtection() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  ~SimProtection() override {
    for (int index = 0; index < 3; ++index) accelerator()->synchronize(index);
  }
  c10::TensorOptions options = torch::device(at(0));
};

using SimProtectionDeathTest = SimProtection;

TEST_F(SimProtectionDeathTest, TheHostCannotTouchDeviceMemory) {
  const auto x = torch::ones({4}, options);
  EXPECT_DEATH((void)*static_cast<volatile float*>(x.data_ptr()), "");
  EXPECT_DEATH(*static_cast<volatile float*>(x.data_ptr()) = 2, "");
  EXPECT_DEATH(
      {
        sleep(1000);  // nor while a kernel runs
        (void)*static_cast<volatile float*>(x.data_ptr());
      },
      "");
  EXPECT_EQ(x.sum().item<float>(), 4.0f);
}

TEST_F(SimProtectionDeathTest, TheProcessEndsWithWorkUnderWay) {
  const double time = milliseconds([&] {
    EXPECT_EXIT(
        {
          static auto kept = torch::ones({4}, options);
          sleep(100000);
          kept.add_(1);
          auto event = accelerator()->Event();
          event.record();
          event.wait(accelerator()->Stream());
          std::exit(0);
        },
        ::testing::ExitedWithCode(0), "");
  });
  EXPECT_LT(time, 30000);
}

// The child has no stream threads, and must not write into its parent's devices.
TEST_F(SimProtection, AChildOfForkIsRefused) {
  auto x = torch::ones({4}, options);
  accelerator()->synchronize();
  const pid_t child = fork();
  if (child == 0) {
    int refused = 0;
    const auto expect_refusal = [&](auto&& call) {
      try {
        call();
      } catch (const HardwareError& error) {
        refused += std::string(error.what()).find("fork") != std::string::npos ? 1 : 0;
      }
    };
    expect_refusal([&] { x.fill_(2); });
    expect_refusal([&] { x.cpu(); });
    expect_refusal([&] { torch::empty({1 << 20}, options); });
    expect_refusal([&] { accelerator()->synchronize(); });
    x.reset();
    _exit(refused);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 4);
  EXPECT_EQ(x.sum().item<float>(), 4.0f);
}

TEST_F(SimProtection, TensorsOfTwoDevicesDoNotMix) {
  const auto x = torch::ones({2, 2}, options), y = torch::ones({2, 2}, torch::device(at(1)));
  EXPECT_ERROR(x.matmul(y), c10::Error, "aten::mm.out was given tensors on sim:0 and sim:1");
  EXPECT_ERROR(x.add(y), c10::Error, "sim:0 and sim:1");
  EXPECT_ERROR(x.index_select(0, torch::zeros({1}, torch::dtype(torch::kLong).device(at(2)))),
               c10::Error, "sim:0 and sim:2");
  EXPECT_ERROR(
      torch::conv1d(torch::ones({1, 1, 3}, options), torch::ones({1, 1, 1}, torch::device(at(1)))),
      c10::Error, "was given tensors on sim:0 and sim:1");
}

TEST_F(SimProtection, HostTensorsDoNotMixButNumbersDo) {
  const auto x = torch::ones({2, 2}, options), host = torch::ones({2, 2});
  EXPECT_ERROR(x.matmul(host), c10::Error, "aten::mm.out was given tensors on sim:0 and cpu");
  EXPECT_ERROR(x.add(host), c10::Error, "cpu");
  EXPECT_ERROR(host.add_(x), c10::Error, "cpu");
  EXPECT_ERROR(torch::mm_out(const_cast<at::Tensor&>(host), x, x), c10::Error, "cpu");
  EXPECT_EQ(x.add(torch::tensor(2.0f)).sum().item<float>(), 12.0f);
  EXPECT_EQ(x.mul(2.5).sum().item<float>(), 10.0f);
}

TEST_F(SimProtection, HostIndicesAreTakenAsOnCuda) {
  const auto x = torch::arange(6, options).view({3, 2});
  const auto rows = torch::tensor({2, 0});
  EXPECT_TRUE(torch::equal(x.index({rows}).cpu(), x.cpu().index({rows})));
  auto y = torch::zeros({3}, options);
  y.index_put_({rows}, torch::ones({2}, options));
  EXPECT_TRUE(torch::equal(y.cpu(), torch::tensor({1.0f, 0.0f, 1.0f})));
}

TEST_F(SimProtection, GeneratorsOfOtherDevicesAreRefused) {
  auto x = torch::empty({2}, options);
  EXPECT_ERROR(x.normal_(0, 1, at::detail::createCPUGenerator()), c10::Error,
               "expected a generator of sim:0");
  EXPECT_ERROR(x.normal_(0, 1, at::globalContext().defaultGenerator(at(1))), c10::Error,
               "but got one of sim:1");
}

TEST_F(SimProtection, WhatDevicesLackIsRefused) {
  EXPECT_ERROR(torch::empty({2}, options.pinned_memory(true)), c10::Error, "pinned");
  EXPECT_THROW(torch::ones({2, 2}, options).to_sparse(), c10::Error);
  EXPECT_THROW(torch::ones({2, 2}, options).to_mkldnn(), c10::Error);
  EXPECT_ERROR(torch::empty({2}, torch::device(at(3))), c10::Error, "there is no device sim:3");
}

TEST_F(SimProtection, ABrokenDriverFailsEveryCallButFreeing) {
  auto x = torch::ones({2}, options);
  break_driver(true);
  EXPECT_ERROR(accelerator()->synchronize(), HardwareError, "simulated driver error 700");
  EXPECT_ERROR(accelerator()->memory_allocated(), HardwareError, "simulated driver error 700");
  EXPECT_ERROR(x.add_(1), c10::Error, "simulated driver error 700");
  EXPECT_ERROR(x.cpu(), c10::Error, "simulated driver error 700");
  EXPECT_ERROR(torch::empty({3}, options), c10::Error, "simulated driver error 700");
  EXPECT_ERROR(sleep(1), c10::Error, "simulated driver error 700");
  x.reset();
  break_driver(false);
  EXPECT_NO_THROW(torch::ones({2}, options).cpu());
}

}  // namespace
}  // namespace drivetrain::sim
