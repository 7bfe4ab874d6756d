// SPDX-License-Identifier: Apache-2.0
// The contract, on every registered backend that has a device: a call works where capabilities()
// says so, and is refused with one typed error where not. A backend registered before main joins.
#include <torch/torch.h>

#include <ATen/autocast_mode.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "expect_error.h"

namespace drivetrain {
namespace {

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const std::string& name : registered_accelerators())
    if (make_accelerator(name)->is_available()) names.push_back(name);
  return names;
}

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

  at::Tensor zeros(int64_t bytes) const {
    return torch::empty({bytes},
                        torch::dtype(torch::kUInt8).device(accelerator->get_current_device()));
  }

  std::shared_ptr<BaseAccelerator> accelerator = make_accelerator(GetParam());
  Capabilities can = accelerator->capabilities();
};

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
    EXPECT_GT(accelerator->get_device_properties().multi_processor_count, 0);
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

TEST_P(Contract, CountsMemoryInBytes) {
  follows(can.memory_stats, [&] {
    const int64_t before = accelerator->memory_allocated();
    const int64_t size = 64 << 20;
    auto block = zeros(size);
    EXPECT_EQ(accelerator->memory_allocated() - before, size);
    EXPECT_GE(accelerator->memory_stats().allocations.current, 1);
    EXPECT_GT(accelerator->memory_reserved(), 0);
    EXPECT_THAT(accelerator->memory_summary(), ::testing::HasSubstr("inactive split"));
    EXPECT_THAT(accelerator->memory_summary({}, true),
                ::testing::Not(::testing::HasSubstr("inactive split")));
    block.reset();
    EXPECT_EQ(accelerator->memory_allocated(), before);
    accelerator->empty_cache();
  });
}

TEST_P(Contract, PeaksGrowAndAreReset) {
  follows(can.memory_peaks, [&] {
    accelerator->reset_peak_memory_stats();
    const int64_t before = accelerator->max_memory_allocated();
    const int64_t size = 64 << 20;
    zeros(size).fill_(1);
    EXPECT_EQ(accelerator->max_memory_allocated() - before, size);
    EXPECT_GE(accelerator->max_memory_reserved(), size);
    accelerator->reset_max_memory_allocated();
    EXPECT_EQ(accelerator->max_memory_allocated(), before);
    accelerator->reset_max_memory_cached();
    EXPECT_LE(accelerator->memory_reserved(), accelerator->max_memory_reserved());
  });
  follows(can.memory_peaks, [&] { accelerator->reset_peak_memory_stats(); });
}

TEST_P(Contract, KnowsHowMuchMemoryThereIs) {
  follows(can.memory_info, [&] {
    EXPECT_GT(accelerator->total_memory(), 0);
    EXPECT_GT(accelerator->available_memory(), 0);
    EXPECT_LE(accelerator->available_memory(), accelerator->total_memory());
  });
  follows(can.memory_info, [&] { accelerator->available_memory(); });
}

TEST_P(Contract, ListsLiveBlocksWhereItCan) {
  follows(can.memory_snapshot, [&] {
    accelerator->memory_snapshot();  // from here on blocks are known
    const auto block = zeros(12345);
    const auto live = accelerator->memory_snapshot();
    const auto address = reinterpret_cast<uintptr_t>(block.data_ptr());
    EXPECT_TRUE(std::any_of(live.begin(), live.end(), [&](const MemoryBlock& known) {
      return known.address == address && known.bytes == 12345;
    }));
  });
}

TEST_P(Contract, LimitsMemoryWhereItCan) {
  EXPECT_ERROR(accelerator->set_per_process_memory_fraction(1.5), HardwareError, "allowed: 0 to 1");
  EXPECT_ERROR(accelerator->set_per_process_memory_fraction(NAN), HardwareError, "allowed: 0 to 1");
  follows(can.memory_fraction, [&] {
    accelerator->set_per_process_memory_fraction(0.0);
    EXPECT_THROW(zeros(1 << 20), c10::OutOfMemoryError);
    accelerator->set_per_process_memory_fraction(1.0);
    EXPECT_NO_THROW(zeros(1 << 20));
  });
}

TEST_P(Contract, PinsOrReturnsTheSameTensor) {
  const auto tensor = torch::arange(6);
  const auto pinned = accelerator->pin_memory(tensor);
  EXPECT_TRUE(torch::equal(pinned, tensor));
  if (!can.pinned_memory) {
    EXPECT_TRUE(pinned.is_same(tensor));
  }
  EXPECT_FALSE(accelerator->pin_memory(torch::Tensor()).defined());
}

TEST_P(Contract, SetsStreamsForAScope) {
  follows(can.streams, [&] {
    const auto outer = accelerator->current_stream();
    EXPECT_EQ(outer, accelerator->default_stream());
    const auto side = accelerator->Stream();
    EXPECT_NE(side, outer);
    EXPECT_NE(side, accelerator->Stream({}, -1));
    {
      const auto guard = accelerator->stream(side);
      EXPECT_EQ(accelerator->current_stream(), side);
      const auto inner = accelerator->stream(std::nullopt);
      EXPECT_EQ(accelerator->current_stream(), side);
    }
    EXPECT_EQ(accelerator->current_stream(), outer);
    accelerator->set_stream(side);
    EXPECT_EQ(accelerator->current_stream(), side);
    EXPECT_TRUE(side.query());
    side.synchronize();
    accelerator->set_stream(outer);
  });
}

TEST_P(Contract, AScopedStreamSurvivesAnException) {
  follows(can.streams, [&] {
    const auto outer = accelerator->current_stream();
    try {
      const auto guard = accelerator->stream(accelerator->Stream());
      throw std::runtime_error("inside");
    } catch (const std::runtime_error&) {
      EXPECT_EQ(accelerator->current_stream(), outer);
    }
  });
}

TEST_P(Contract, RefusesStreamsOfOtherDevices) {
  const c10::Stream foreign(c10::Stream::DEFAULT, c10::Device(c10::kMeta));
  EXPECT_ERROR(accelerator->set_stream(foreign), HardwareError, "of type meta");
  EXPECT_ERROR(accelerator->stream(foreign), HardwareError, "of type meta");
}

TEST_P(Contract, EventsMarkAndTimeWork) {
  follows(can.events, [&] {
    auto start = accelerator->Event(/*enable_timing=*/true);
    auto end = accelerator->Event(/*enable_timing=*/true);
    EXPECT_TRUE(start.query());
    EXPECT_ERROR(start.elapsed_time(end), HardwareError, "elapsed_time");
    start.record();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    end.record(accelerator->current_stream());
    end.wait(accelerator->Stream());
    end.synchronize();
    EXPECT_TRUE(end.query());
    EXPECT_GE(start.elapsed_time(end), 0.0);
    auto moved = std::move(end);
    EXPECT_GE(start.elapsed_time(moved), 0.0);
    auto untimed = accelerator->Event();
    untimed.record();
    untimed.wait();
    EXPECT_ERROR(start.elapsed_time(untimed), HardwareError, "elapsed_time");
  });
}

TEST_P(Contract, RefusesKindsOfEventsThatItLacks) {
  follows(can.blocking_events, [&] { accelerator->Event(false, /*blocking=*/true); });
  follows(can.interprocess_events,
          [&] { accelerator->Event(false, false, /*interprocess=*/true); });
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

TEST_P(Contract, OneThreadAStreamWorks) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      const auto guard = accelerator->stream(accelerator->Stream());
      for (int step = 0; step < 50; ++step) {
        const auto ones = torch::ones({64}, torch::device(accelerator->get_current_device()));
        if (ones.sum().item<float>() == 64.0f) ++right;
      }
      accelerator->synchronize();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

}  // namespace
}  // namespace drivetrain
