// SPDX-License-Identifier: Apache-2.0
#include "comm/courier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <vector>

#include "expect_error.h"

namespace drivetrain::comm {
namespace {

using namespace std::chrono_literals;

struct Finished : Work {
  bool wait_for(Milliseconds) override { return true; }
  bool done() override { return true; }
};

TEST(Courier, StartsInTheOrderOfCallsOnceTheyAreReady) {
  Courier courier;
  std::promise<void> arrived;
  std::vector<int> order;
  std::vector<Transport::Started> work;
  for (int i = 0; i < 3; ++i)
    work.push_back(courier.start_after(
        [&, i] {
          if (i == 0) arrived.get_future().wait();
        },
        [&, i]() -> Transport::Started {
          order.push_back(i);
          return std::make_unique<Finished>();
        }));
  EXPECT_FALSE(work[0]->wait_for(20ms));
  EXPECT_FALSE(work[2]->done());
  EXPECT_FALSE(courier.is_idle_within(10ms));
  arrived.set_value();
  EXPECT_TRUE(courier.is_idle_within(10s));
  for (const auto& one : work) EXPECT_TRUE(one->wait_for(10s) && one->done());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(Courier, BringsErrorsToWhoeverWaits) {
  Courier courier;
  const auto fails = courier.start_after([] { throw std::runtime_error("no device"); },
                                         [] { return std::make_unique<Finished>(); });
  const auto starts_badly = courier.start_after(
      [] {}, []() -> Transport::Started { throw std::runtime_error("no peer"); });
  EXPECT_ERROR(fails->wait_for(10s), std::runtime_error, "no device");
  EXPECT_ERROR(starts_badly->wait_for(10s), std::runtime_error, "no peer");
  EXPECT_TRUE(fails->done());
}

TEST(Courier, StartsNothingOnceItIsStopped) {
  Courier courier;
  std::promise<void> entered;
  std::promise<void> arrived;
  std::atomic<int> num_started{0};
  const auto start = [&]() -> Transport::Started {
    ++num_started;
    return std::make_unique<Finished>();
  };
  const auto work = courier.start_after(
      [&] {
        entered.set_value();
        arrived.get_future().wait();
      },
      start);
  const auto behind = courier.start_after([] {}, start);
  entered.get_future().wait();
  std::thread stopping([&] { courier.stop(); });
  std::this_thread::sleep_for(1s);  // stop() has begun by then
  arrived.set_value();
  stopping.join();
  EXPECT_ERROR(work->wait_for(10s), std::runtime_error, "its world ended before it was started");
  EXPECT_ERROR(behind->wait_for(10s), std::runtime_error, "its world ended before it was started");
  EXPECT_EQ(num_started, 0);
}

}  // namespace
}  // namespace drivetrain::comm
