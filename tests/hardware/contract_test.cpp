// SPDX-License-Identifier: Apache-2.0
// The contract's device, random number and autocast groups (contract.h).
#include <torch/torch.h>

#include "contract.h"

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <thread>

namespace drivetrain {
namespace {

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const std::string& name : registered_accelerators())
    if (make_accelerator(name)->is_available()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Every, Contract, ::testing::ValuesIn(available()),
                         [](const auto& test) { return test.param; });

TEST_P(Contract, NamesItself) {
  EXPECT_EQ(accelerator->name(), GetParam());
  EXPECT_FALSE(accelerator->communication_backend().empty());
  EXPECT_EQ(accelerator->support_set_device(), can.set_device);
  EXPECT_EQ(accelerator->is_synchronous(), can.synchronous);
  EXPECT_THAT(accelerator->repr(), ::testing::HasSubstr(GetParam() + " (communication "));
  EXPECT_NO_THROW(accelerator->get_version());
}

// What the rest of Drivetrain, and LibTorch, take for granted of any backend.
TEST_P(Contract, LacksNothingThatTrainingNeeds) {
  const auto has = [&](bool capability, const char* what) {
    EXPECT_TRUE(capability) << "backend " << GetParam() << " lacks " << what;
  };
  has(can.set_device || accelerator->device_count() == 1, "set_device (it has several devices)");
  has(can.random_numbers, "random_numbers: a default generator for each device");
  has(can.memory_stats, "memory_stats: a c10::DeviceAllocator that counts");
  has(can.memory_info, "memory_info: getMemoryInfo() of its allocator");
  has(can.streams, "streams: getStream, exchangeStream, getNewStream of its guard");
  has(can.events, "events: record, block, queryEvent, elapsedTime of its guard");
  has(can.autocast, "autocast: registrations for its autocast dispatch key");
}

TEST_P(Contract, HasDevicesAndACurrentOne) {
  ASSERT_GE(accelerator->device_count(), 1);
  EXPECT_GE(accelerator->current_device(), 0);
  EXPECT_LT(accelerator->current_device(), accelerator->device_count());
  EXPECT_EQ(accelerator->get_current_device().type(), accelerator->device_type());
  accelerator->set_device(0);
  EXPECT_EQ(accelerator->current_device(), 0);
  const int last = accelerator->device_count() - 1;
  accelerator->set_device(last);
  EXPECT_EQ(accelerator->current_device(), last);
  accelerator->set_device(0);
  accelerator->synchronize();
  accelerator->synchronize(last);
}

TEST_P(Contract, TheCurrentDeviceIsTheThreadsOwn) {
  const int last = accelerator->device_count() - 1;
  accelerator->set_device(last);
  std::thread([&] { accelerator->set_device(0); }).join();
  EXPECT_EQ(accelerator->current_device(), last);
  accelerator->set_device(0);
}

TEST_P(Contract, LibTorchsDeviceGuardsAgreeAndRestore) {
  accelerator->set_device(0);
  const c10::Device other(accelerator->device_type(), static_cast<c10::DeviceIndex>(last_device()));
  {
    const c10::OptionalDeviceGuard guard(other);
    EXPECT_EQ(accelerator->current_device(), last_device());
    const auto made = torch::ones({2}, torch::device(accelerator->device_type()));
    EXPECT_EQ(made.device().type(), other.type());
    EXPECT_EQ(std::max<int>(made.device().index(), 0), last_device());
  }
  EXPECT_EQ(accelerator->current_device(), 0);
}

TEST_P(Contract, RefusesDevicesThatAreNotThere) {
  const int count = accelerator->device_count();
  EXPECT_ERROR(accelerator->set_device(count), HardwareError, "allowed: 0 to ");
  EXPECT_ERROR(accelerator->synchronize(-1), HardwareError, "was given device -1");
  EXPECT_ERROR(accelerator->get_rng_state(300), HardwareError, "was given device 300");
  EXPECT_ERROR(accelerator->synchronize(c10::Device(c10::kMeta)), HardwareError, "of type meta");
}

TEST_P(Contract, TakesADeviceForAnIndex) {
  accelerator->synchronize(accelerator->get_current_device());
  accelerator->set_device(accelerator->get_current_device());
}

TEST_P(Contract, DescribesDevicesWhereItCan) {
  follows(can.properties, [&] {
    EXPECT_FALSE(accelerator->get_device_name().empty());
    EXPECT_EQ(accelerator->get_device_properties(0).name, accelerator->get_device_name(0));
    EXPECT_GT(accelerator->get_device_properties().total_memory, 0);
    EXPECT_GE(accelerator->get_device_properties().multi_processor_count, 0);
  });
  follows(can.properties, [&] { accelerator->get_device_name(); });
  follows(can.properties,
          [&] { EXPECT_FALSE(accelerator->get_device_capability().level.empty()); });
  follows(can.utilization, [&] {
    const double percent = accelerator->utilization();
    EXPECT_GE(percent, 0.0);
    EXPECT_LE(percent, 100.0);
  });
}

TEST_P(Contract, RepeatsRandomNumbersFromASeedAndFromAState) {
  follows(can.random_numbers, [&] {
    accelerator->manual_seed(7);
    EXPECT_EQ(accelerator->initial_seed(), 7u);
    const auto options = torch::device(accelerator->get_current_device());
    const auto first = torch::randn({5}, options).cpu();
    const auto state = accelerator->get_rng_state();
    const auto second = torch::randn({5}, options).cpu();
    EXPECT_FALSE(torch::equal(first, second));
    accelerator->set_rng_state(state);
    EXPECT_TRUE(torch::equal(torch::randn({5}, options).cpu(), second));
    accelerator->manual_seed_all(7);
    EXPECT_TRUE(torch::equal(torch::randn({5}, options).cpu(), first));
  });
}

TEST_P(Contract, SavesAndRestoresEveryGenerator) {
  follows(can.random_numbers, [&] {
    const auto states = accelerator->get_rng_state_all();
    ASSERT_EQ(static_cast<int>(states.size()), accelerator->device_count());
    const uint64_t seed = accelerator->seed_all();
    EXPECT_EQ(accelerator->initial_seed(), seed);
    EXPECT_NE(accelerator->seed(), seed);
    accelerator->set_rng_state_all(states);
    for (int i = 0; i < accelerator->device_count(); ++i)
      EXPECT_TRUE(torch::equal(accelerator->get_rng_state(i), states[i]));
    EXPECT_ERROR(accelerator->set_rng_state_all({}), HardwareError, "was given 0 states");
    EXPECT_ERROR(accelerator->set_rng_state(torch::zeros({3})), HardwareError, "is no state");
  });
}

TEST_P(Contract, AutocastIsOnInsideItsScopeOnly) {
  follows(can.autocast, [&] {
    const auto type = accelerator->device_type();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(type));
    {
      const auto scope = accelerator->autocast();
      EXPECT_TRUE(at::autocast::is_autocast_enabled(type));
      const auto off = accelerator->autocast(/*enabled=*/false);
      EXPECT_FALSE(at::autocast::is_autocast_enabled(type));
    }
    EXPECT_FALSE(at::autocast::is_autocast_enabled(type));
    EXPECT_ERROR(accelerator->autocast(true, torch::kFloat64), HardwareError, "allowed: Half");
  });
}

TEST_P(Contract, CopiesThereAndBackAndBetweenDevices) {
  const auto source = torch::arange(1000, torch::kFloat);
  const c10::Device other(accelerator->device_type(), static_cast<c10::DeviceIndex>(last_device()));
  const auto there = accelerator->pin_memory(source).to(here(), /*non_blocking=*/true);
  EXPECT_TRUE(torch::equal(there.to(other).cpu(), source));
  EXPECT_TRUE(torch::equal(there.t().slice(0, 3, 900, 7).to(torch::kHalf).cpu(),
                           source.slice(0, 3, 900, 7).to(torch::kHalf)));
  EXPECT_EQ(torch::empty({0}, torch::device(here())).cpu().numel(), 0);
}

// One step of a small model as the CPU does it, its weights moved there and back.
TEST_P(Contract, MovesAndTrainsAModule) {
  const auto input = torch::linspace(-1, 1, 24).view({6, 4});
  const auto trained = [&](const BaseAccelerator& on) {
    torch::manual_seed(5);
    torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    on.set_to_device(*net);
    for (const auto& parameter : net->parameters())
      EXPECT_EQ(parameter.device().type(), on.device_type());
    net->forward(input.to(on.get_current_device())).pow(2).sum().backward();
    optimizer.step();
    return net->parameters()[0].detach().cpu();
  };
  const auto want = trained(*make_accelerator("cpu"));
  EXPECT_TRUE(torch::allclose(trained(*accelerator), want, 1e-5, 1e-6));
}

}  // namespace
}  // namespace drivetrain
