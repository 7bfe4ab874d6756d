// SPDX-License-Identifier: Apache-2.0
// The device-generic backend, on simulated PrivateUse1 devices.
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <drivetrain_sim/sim.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "scoped_env.h"

namespace drivetrain {
namespace {

constexpr int64_t kBytes = int64_t{256} << 20;

// Before main, so that suites parameterised by the registry see it.
[[maybe_unused]] const bool loaded = (sim::load({.devices = 2, .memory_bytes = kBytes}), true);

std::string reason_of(const std::string& name) {
  for (const ProbeResult& result : probe_report())
    if (result.name == name) return result.reason;
  return "(not in the report)";
}

class Device : public ::testing::Test {
 protected:
  Device() {
    clear_accelerator();
    accelerator->set_device(0);
  }
  ~Device() override {
    sim::break_driver(false);
    accelerator->set_device(0);
    clear_accelerator();
  }

  ScopedEnv no_choice{"DRIVETRAIN_ACCELERATOR", nullptr};
  ScopedEnv no_rank{"LOCAL_RANK", nullptr};
  std::shared_ptr<BaseAccelerator> accelerator = make_accelerator("sim");
};

TEST_F(Device, ThatIsRegisteredComesBeforeTheCpu) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "cuda comes first";
  EXPECT_EQ(get_accelerator()->name(), "sim");
  EXPECT_EQ(reason_of("sim"), "2 devices, first in order");
  EXPECT_EQ(reason_of("cpu"), "1 device, but sim comes first");
  EXPECT_EQ(reason_of("npu"), "the PrivateUse1 plugin loaded is \"sim\"");
  for (const ProbeResult& result : probe_report()) EXPECT_EQ(result.chosen, result.name == "sim");
}

TEST_F(Device, ThatIsPassedOverForTheEnvironmentsIsReported) {
  const ScopedEnv choice("DRIVETRAIN_ACCELERATOR", "cpu");
  EXPECT_EQ(get_accelerator()->name(), "cpu");
  EXPECT_EQ(reason_of("sim"), "2 devices, but DRIVETRAIN_ACCELERATOR names cpu");
}

TEST_F(Device, IsTheOneOfTheLocalRank) {
  accelerator->set_device();
  EXPECT_EQ(accelerator->current_device(), 0);
  const ScopedEnv rank("LOCAL_RANK", "1");
  accelerator->set_device();
  EXPECT_EQ(accelerator->get_current_device(), c10::Device(c10::kPrivateUse1, 1));
  EXPECT_EQ(torch::empty({1}, torch::device(c10::kPrivateUse1)).device().index(), 1);
}

TEST_F(Device, OfALocalRankThatHasNoneIsRefused) {
  const ScopedEnv rank("LOCAL_RANK", "2");
  EXPECT_ERROR(accelerator->set_device(), HardwareError,
               "sim: local rank 2 has no device of its own among 2");
}

TEST_F(Device, OfSlurmsLocalRankIsTaken) {
  const ScopedEnv rank("SLURM_LOCALID", "1");
  accelerator->set_device();
  EXPECT_EQ(accelerator->current_device(), 1);
}

TEST_F(Device, ErrorsArriveTypedWithBackendCallAndReason) {
  sim::break_driver(true);
  EXPECT_ERROR(accelerator->synchronize(), HardwareError,
               "sim: synchronize failed: simulated driver error 700");
  EXPECT_ERROR(accelerator->memory_allocated(), HardwareError,
               "sim: memory_stats failed: simulated");
}

TEST_F(Device, WhatNoLibraryTellsIsRefusedWithTheReason) {
  AcceleratorFacts facts;
  facts.name = "plain";
  facts.plugin = "sim";
  const DeviceAccelerator plain(facts);
  EXPECT_TRUE(plain.is_available());
  EXPECT_FALSE(plain.capabilities().properties);
  EXPECT_ERROR(plain.get_device_name(), HardwareError, "no device-generic query");
  EXPECT_ERROR(plain.utilization(), HardwareError, "plain: utilization is not supported");
  EXPECT_ERROR(plain.memory_snapshot(), HardwareError, "memory_snapshot is not supported");
  EXPECT_ERROR(plain.Event(false, true), HardwareError, "cannot be made blocking");
  EXPECT_ERROR(plain.Event(false, false, true), HardwareError, "shared between processes");
}

TEST_F(Device, MemoryIsCountedByDevice) {
  const auto options = torch::dtype(torch::kUInt8).device(c10::Device(c10::kPrivateUse1, 1));
  const int64_t before = accelerator->memory_allocated(1);
  const int64_t other = accelerator->memory_allocated(0);
  const auto block = torch::empty({1 << 20}, options);
  EXPECT_EQ(accelerator->memory_allocated(1) - before, 1 << 20);
  EXPECT_EQ(accelerator->memory_allocated(block.device()) - before, 1 << 20);
  EXPECT_EQ(accelerator->memory_allocated(0), other);
  EXPECT_EQ(accelerator->total_memory(1), kBytes);
  EXPECT_EQ(accelerator->available_memory(1), kBytes - accelerator->memory_reserved(1));
  EXPECT_THROW(torch::empty({512 << 20}, options), c10::OutOfMemoryError);
}

TEST_F(Device, GeneratorsAreSeparate) {
  accelerator->manual_seed_all(3);
  const auto states = accelerator->get_rng_state_all();
  torch::randn({4}, torch::device(c10::Device(c10::kPrivateUse1, 1)));
  EXPECT_TRUE(torch::equal(accelerator->get_rng_state(0), states[0]));
  EXPECT_FALSE(torch::equal(accelerator->get_rng_state(1), states[1]));
}

TEST_F(Device, AStreamGuardSwitchesTheDeviceToo) {
  const auto side = accelerator->Stream(1);
  {
    const auto guard = accelerator->stream(side);
    EXPECT_EQ(accelerator->current_device(), 1);
    EXPECT_EQ(accelerator->current_stream(), side);
  }
  EXPECT_EQ(accelerator->current_device(), 0);
  EXPECT_EQ(accelerator->current_stream(1), accelerator->default_stream(1));
}

TEST_F(Device, EventsOfOtherBackendsDoNotMix) {
  auto mine = accelerator->Event(true), other = CpuAccelerator().Event(true);
  mine.record();
  other.record();
  EXPECT_ERROR(mine.elapsed_time(other), HardwareError, "event of another backend");
  EXPECT_ERROR(other.elapsed_time(mine), HardwareError, "of another backend");
  EXPECT_ERROR(mine.record(CpuAccelerator().current_stream()), HardwareError,
               "sim: Event.record failed");
  EXPECT_ERROR(other.record(accelerator->current_stream()), HardwareError,
               "was given a stream of sim:0");
}

TEST_F(Device, WithoutPageLockedMemoryTheTensorIsPassedOn) {
  const auto tensor = torch::arange(3);
  sim::break_driver(true);
  EXPECT_TRUE(accelerator->pin_memory(tensor).is_same(tensor));
  sim::break_driver(false);
  EXPECT_TRUE(accelerator->pin_memory(tensor).is_pinned());
}

// Three steps with an optimizer made before the move are those that the CPU takes.
TEST_F(Device, AModuleMovesUnderItsOptimizer) {
  const auto train = [&](bool on_device) {
    torch::manual_seed(0);
    torch::nn::Linear module(3, 2);
    torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto x = torch::randn({4, 3});
    if (on_device) {
      accelerator->set_to_device(*module);
      x = x.to(accelerator->get_current_device());
    }
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      module->forward(x).pow(2).sum().backward();
      optimizer.step();
    }
    EXPECT_EQ(module->weight.is_cpu(), !on_device);
    if (on_device) move_module_(*module, c10::kCPU);
    EXPECT_TRUE(module->weight.grad().is_cpu());
    return module->weight.detach().clone();
  };
  EXPECT_TRUE(torch::equal(train(true), train(false)));
}

TEST_F(Device, ATensorThatAGraphHoldsIsNotMoved) {
  torch::nn::Linear module(2, 2);
  {
    const auto loss = module->forward(torch::ones({1, 2})).sum();
    EXPECT_ERROR(accelerator->set_to_device(*module), HardwareError, "a graph still holds it");
    EXPECT_TRUE(module->weight.is_cpu());
    EXPECT_TRUE(module->bias.is_cpu());
  }
  accelerator->set_to_device(*module);
  EXPECT_EQ(module->weight.device(), accelerator->get_current_device());
}

TEST_F(Device, WithoutRoomForTheModuleNothingIsMoved) {
  torch::nn::Linear module(torch::nn::LinearOptions(8192, 4096).bias(false));  // 128 MiB
  module->register_buffer("more", torch::empty({160 << 20}, torch::kUInt8));
  EXPECT_THROW(accelerator->set_to_device(*module), c10::OutOfMemoryError);
  EXPECT_TRUE(module->weight.is_cpu());
}

TEST_F(Device, FactsThatDoNotFitAreUnavailableWithTheReason) {
  EXPECT_EQ(NpuAccelerator().why_unavailable(), "the PrivateUse1 plugin loaded is \"sim\"");
  EXPECT_ERROR(set_accelerator("npu"), HardwareError, "the PrivateUse1 plugin loaded is \"sim\"");
}

}  // namespace
}  // namespace drivetrain
