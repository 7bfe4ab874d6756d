// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/rank_label.h"

namespace drivetrain {
namespace {

TEST(Error, CarriesRankRoomAndMessage) {
  std::thread([] {
    core::set_rank_label(3, 8);
    EXPECT_STREQ(CommError("rank 2 is gone").what(), "[rank 3/8] comm: rank 2 is gone");
    core::set_rank_label(0, 1);
    EXPECT_STREQ(ConfigError("bad").what(), "config: bad");
    EXPECT_STREQ(CheckpointError("torn").what(), "checkpoint: torn");
    EXPECT_STREQ(HardwareError("absent").what(), "hardware: absent");
  }).join();
  EXPECT_EQ(ConfigError("bad").what_happened(), "bad");
}

TEST(Error, ThreadsOfARankInheritItsLabel) {
  std::thread([] {
    core::set_rank_label(1, 2);
    EXPECT_EQ(core::rank_label(), "[rank 1/2] ");
  }).join();
  std::thread([] {
    core::set_rank_label(0, 2);
    EXPECT_EQ(core::rank_label(), "[rank 0/2] ");
  }).join();
}

}  // namespace
}  // namespace drivetrain
