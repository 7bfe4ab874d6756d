// SPDX-License-Identifier: Apache-2.0
// A timeline of one device of several, through the device-generic backend.
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/memory.h>
#include <drivetrain_sim/sim.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "expect_error.h"

namespace drivetrain {
namespace {

using enum MemoryCategory;
using ::testing::HasSubstr;

constexpr const char* kBackend = "sim";

[[maybe_unused]] const bool loaded =
    (sim::load({.devices = 2, .memory_bytes = int64_t{256} << 20}), true);

class DeviceTimeline : public ::testing::Test {
 protected:
  DeviceTimeline() { accelerator->set_device(1); }
  ~DeviceTimeline() override { accelerator->set_device(0); }

  std::shared_ptr<BaseAccelerator> accelerator = make_accelerator(kBackend);
};

TEST_F(DeviceTimeline, OfATrainingRunIsTheClosedForm) {
  torch::nn::Linear model(64, 32);
  accelerator->set_to_device(*model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto x = torch::randn({1024, 64}).to(accelerator->get_current_device());
  MemoryTimeline timeline(accelerator);
  timeline.track(*model, "model");
  timeline.track(optimizer);
  constexpr int64_t kBytes = (64 * 32 + 32) * 4;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model->forward(x).pow(2).sum().backward();
    optimizer.step();
    const MemoryPoint point = timeline.step();
    EXPECT_EQ(point[parameters], kBytes);
    EXPECT_EQ(point[gradients], kBytes);
    EXPECT_EQ(point[MemoryCategory::optimizer], kBytes);
    EXPECT_GE(point[other], 1024 * 64 * 4);
    // pow saves its input; gradients and momentum may not have been there yet at the peak.
    EXPECT_GE(point[activations], 1024 * 32 * 4 - 2 * kBytes);
    EXPECT_EQ(point.allocated, accelerator->memory_allocated(1));
  }
}

TEST_F(DeviceTimeline, DoesNotCountAModuleElsewhere) {
  torch::nn::Linear on_host(10, 10), on_neighbour(10, 10), here(10, 10);
  move_module_(*on_neighbour, c10::Device(accelerator->device_type(), 0));
  accelerator->set_to_device(*here);
  MemoryTimeline timeline(accelerator, {.device = 1});
  timeline.track(*on_host, "host");
  timeline.track(*on_neighbour, "neighbour");
  timeline.track(*here, "here");
  EXPECT_EQ(timeline.step()[parameters], 110 * 4);
  EXPECT_THAT(timeline.summary(), HasSubstr("host: 440 B on other devices are not counted\n"));
  EXPECT_THAT(timeline.summary(), HasSubstr("neighbour: 440 B on other devices"));
  EXPECT_THAT(timeline.summary(), ::testing::Not(HasSubstr("here:")));

  MemoryTimeline of_host(std::make_shared<CpuAccelerator>());
  of_host.track(*here, "here");
  of_host.track(*on_host, "host");
  EXPECT_EQ(of_host.step()[parameters], 440);
}

TEST_F(DeviceTimeline, LeavesTheOtherDevicesPeakAlone) {
  {
    const auto block = torch::empty({1 << 20}, c10::Device(accelerator->device_type(), 0));
  }
  const int64_t peak = accelerator->max_memory_allocated(0);
  MemoryTimeline timeline(accelerator);
  timeline.step();
  EXPECT_EQ(accelerator->max_memory_allocated(0), peak);
  EXPECT_GT(peak, accelerator->memory_allocated(0));
}

TEST_F(DeviceTimeline, KnowsTheCapacity) {
  MemoryTimeline timeline(accelerator);
  EXPECT_THAT(timeline.summary(),
              HasSubstr(std::string(kBackend) + ":1 memory, 0 steps, of 256.0 MiB"));
}

TEST_F(DeviceTimeline, ASnapshotIsOfOneDevice) {
  const auto block =
      torch::empty({12345}, torch::dtype(torch::kUInt8).device(accelerator->get_current_device()));
  const auto document = nlohmann::json::parse(memory_snapshot_json(*accelerator));
  EXPECT_EQ(document["backend"], kBackend);
  EXPECT_EQ(document["device"], 1);
  EXPECT_EQ(document["stats"]["allocated_bytes"]["current"], accelerator->memory_allocated(1));
  EXPECT_EQ(document["blocks"].is_null(), !accelerator->capabilities().memory_snapshot);
}

}  // namespace
}  // namespace drivetrain
