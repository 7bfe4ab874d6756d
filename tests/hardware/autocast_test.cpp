// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <ATen/autocast_mode.h>
#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <thread>

#include "expect_error.h"

namespace drivetrain {
namespace {

struct AutocastOnCpu : ::testing::Test {
  at::ScalarType output() { return torch::matmul(x, w).scalar_type(); }

  CpuAccelerator cpu;
  torch::Tensor x = torch::ones({2, 3});
  torch::Tensor w = torch::ones({3, 2}).requires_grad_();
};

TEST_F(AutocastOnCpu, IsBfloat16InsideAndFloat32Outside) {
  EXPECT_EQ(output(), torch::kFloat32);
  {
    const auto scope = cpu.autocast();
    EXPECT_EQ(output(), torch::kBFloat16);
  }
  EXPECT_EQ(output(), torch::kFloat32);
}

TEST_F(AutocastOnCpu, TakesADtypeAndGivesItBack) {
  {
    const auto scope = cpu.autocast(true, torch::kHalf);
    EXPECT_EQ(output(), torch::kHalf);
  }
  const auto scope = cpu.autocast();
  EXPECT_EQ(output(), torch::kBFloat16);
}

TEST_F(AutocastOnCpu, EndsWithAnException) {
  try {
    const auto scope = cpu.autocast();
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(output(), torch::kFloat32);
  }
}

TEST_F(AutocastOnCpu, NestsOffInsideOn) {
  const auto on = cpu.autocast();
  {
    const auto off = cpu.autocast(false);
    EXPECT_EQ(output(), torch::kFloat32);
  }
  EXPECT_EQ(output(), torch::kBFloat16);
}

TEST_F(AutocastOnCpu, AWeightChangedBetweenScopesIsSeen) {
  const auto step = [&] {
    const auto scope = cpu.autocast();
    return torch::matmul(x, w).sum().item<float>();
  };
  const float before = step();
  {
    const torch::NoGradGuard no_grad;
    w.mul_(10);
  }
  EXPECT_FLOAT_EQ(step(), 10 * before);
}

// The same with an outer scope around both, where the cache would live on.
TEST_F(AutocastOnCpu, AWeightChangedBetweenInnerScopesIsSeen) {
  const auto outer = cpu.autocast();
  const auto step = [&] {
    const auto scope = cpu.autocast();
    return torch::matmul(x, w).sum().item<float>();
  };
  const float before = step();
  {
    const torch::NoGradGuard no_grad;
    w.mul_(10);
  }
  EXPECT_FLOAT_EQ(step(), 10 * before);
}

TEST_F(AutocastOnCpu, CachesWeightsOnlyWhenAsked) {
  const auto grad_of = [&](bool cache) {
    const auto scope = cpu.autocast(true, std::nullopt, cache);
    EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), cache);
    w.mutable_grad().reset();
    (torch::matmul(x, w) + torch::matmul(x, w)).sum().backward();
    return w.grad().clone();
  };
  EXPECT_TRUE(torch::equal(grad_of(true), grad_of(false)));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST_F(AutocastOnCpu, BelongsToItsThread) {
  const auto scope = cpu.autocast();
  at::ScalarType seen = torch::kFloat64;
  std::thread([&] { seen = output(); }).join();
  EXPECT_EQ(seen, torch::kFloat32);
}

TEST_F(AutocastOnCpu, RefusesDtypesAndDevicesItCannotCastTo) {
  EXPECT_ERROR(cpu.autocast(true, torch::kFloat32), HardwareError, "cpu: autocast was asked for");
  EXPECT_ERROR(Autocast(c10::kMeta), HardwareError, "devices of type meta");
  EXPECT_EQ(output(), torch::kFloat32);
}

}  // namespace
}  // namespace drivetrain
