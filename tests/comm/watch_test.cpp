// SPDX-License-Identifier: Apache-2.0
// What a rank makes of another one's last words.
#include "comm/watch.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <thread>

namespace drivetrain::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Optional;

std::unique_ptr<Watch> watch(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                             uint64_t number) {
  return std::make_unique<Watch>(store, rank, 2, "rank 0's store",
                                 [number] { return Position{number, "computing"}; });
}

TEST(Watch, ARankThatLeftAfterACollectiveMayStillHaveSentItsPart) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto mine = watch(store, 0, 3);
  auto other = watch(store, 1, 3);
  mine->refresh(1s);
  EXPECT_EQ(mine->verdict(3, false), std::nullopt);
  other->end(Ending::left, "");
  other.reset();
  mine->refresh(1s);
  EXPECT_EQ(mine->verdict(3, false), std::nullopt);
  EXPECT_THAT(mine->verdict(4, false),
              Optional(HasSubstr("rank 1 has left the world after 3 collectives")));
  EXPECT_TRUE(mine->is_alone());

  // What it sent would have come by now.
  std::this_thread::sleep_for(5500ms);
  mine->refresh(1s);
  EXPECT_THAT(mine->verdict(3, false),
              Optional(HasSubstr("rank 1 has left the world after 3 collectives")));
}

TEST(Watch, ARankThatFailedIsTheReasonBeforeOneThatStoppedForIt) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto mine = watch(store, 0, 1);
  const auto other = watch(store, 1, 1);
  other->end(Ending::failed, "no memory\nis left");
  other->end(Ending::left, "");  // Only the first ending counts.
  mine->refresh(1s);
  EXPECT_EQ(mine->verdict(1, false), "rank 1 failed computing: no memory\nis left");
  EXPECT_EQ(mine->report(), "rank 1 stopped computing");
  EXPECT_EQ(mine->cause({2, "in barrier #2"}), "late: rank 1");
}

TEST(Watch, ACallOfAnotherNameIsTheCauseOfAWait) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Watch mine(store, 0, 3, "rank 0", [] { return Position{4, "in barrier #4"}; });
  const Watch other(store, 1, 3, "rank 0",
                    [] { return Position{4, "in all_gather #4 of float32[2]"}; });
  const Watch same(store, 2, 3, "rank 0", [] { return Position{4, "in barrier #4"}; });
  mine.refresh(1s);
  EXPECT_EQ(mine.cause({4, "in barrier #4"}), "in another call: rank 1");
  EXPECT_EQ(mine.cause({4, "in all_gather #4 of float32[3]"}), "in another call: rank 2");
  EXPECT_EQ(mine.cause({5, "in barrier #5"}), "late: rank 1 and rank 2");
  EXPECT_EQ(mine.cause({3, "in barrier #3"}), "no rank is late");
}

TEST(Watch, ARankThatDiedAtOnceHasNotSaidWhereItWas) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Watch mine(store, 0, 2, "rank 0", [] { return Position{1, "computing"}; });
  EXPECT_EQ(mine.report(), "rank 1 is where it has not said");
}

}  // namespace
}  // namespace drivetrain::comm
