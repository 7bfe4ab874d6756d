// SPDX-License-Identifier: Apache-2.0
// The contract's streams and events (contract.h).
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "contract.h"

namespace drivetrain {
namespace {

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

TEST_P(Contract, WorkOfOneStreamIsInOrder) {
  follows(can.streams, [&] {
    const auto guard = accelerator->stream(accelerator->Stream());
    EXPECT_TRUE(torch::all(slow_sum(0, 100) == 100).item<bool>());
  });
}

TEST_P(Contract, AnEventMakesOneStreamWaitForAnother) {
  follows(can.events, [&] {
    const auto side = accelerator->Stream();
    const auto sum = slow_sum(0, 100);
    auto made = accelerator->Event(), used = accelerator->Event();
    made.record();
    at::Tensor twice;
    {
      const auto guard = accelerator->stream(side);
      made.wait();
      twice = sum * 2;
      used.record();
    }
    used.wait();
    EXPECT_TRUE(torch::all(twice == 200).item<bool>());
  });
}

// Memory freed while another stream still reads it is not given out again before that is done.
TEST_P(Contract, ARecordedStreamKeepsMemoryFromReuse) {
  if (can.synchronous) GTEST_SKIP() << GetParam() << " has done its work when a call returns";
  follows(can.streams, [&] {
    const auto side = accelerator->Stream();
    auto block = torch::full({1 << 20}, 5.0F, torch::device(here()));
    accelerator->synchronize();
    at::Tensor read;
    {
      const auto guard = accelerator->stream(side);
      slow_sum(0, 200);
      read = block + 1;
    }
    block.record_stream(side);
    block.reset();
    const auto fresh = torch::full({1 << 20}, -1.0F, torch::device(here()));
    side.synchronize();
    EXPECT_TRUE(torch::all(read == 6).item<bool>());
    EXPECT_TRUE(torch::all(fresh == -1).item<bool>());
  });
}

TEST_P(Contract, BackwardRunsInTheStreamsOfForward) {
  follows(can.streams, [&] {
    const auto x = torch::ones({1 << 16}, torch::device(here()).requires_grad(true));
    const auto side = accelerator->Stream();
    auto ready = accelerator->Event();
    ready.record();
    {
      const auto guard = accelerator->stream(side);
      ready.wait();
      auto y = x;
      for (int i = 0; i < 20; ++i) y = y * 2;
      y.sum().backward();
    }
    side.synchronize();
    accelerator->synchronize();
    EXPECT_TRUE(torch::all(x.grad() == 1 << 20).item<bool>());
  });
}

}  // namespace
}  // namespace drivetrain
