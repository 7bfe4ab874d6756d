// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace drivetrain::data {
namespace {

TEST(Permutation, HoldsEveryIndexOnce) {
  for (const int64_t n : {0, 1, 2, 7, 1000}) {
    const auto order = permutation(3, 1, n);
    const std::set<int64_t> distinct(order.begin(), order.end());
    EXPECT_EQ(static_cast<int64_t>(order.size()), n);
    EXPECT_EQ(static_cast<int64_t>(distinct.size()), n);
    EXPECT_TRUE(n == 0 || *distinct.rbegin() == n - 1);
  }
}

TEST(Permutation, IsAFunctionOfSeedAndEpoch) {
  EXPECT_EQ(permutation(3, 1, 100), permutation(3, 1, 100));
  EXPECT_NE(permutation(3, 1, 100), permutation(3, 2, 100));
  // Epoch e of seed s is not epoch e - 1 of seed s + 1.
  EXPECT_NE(permutation(3, 1, 100), permutation(4, 0, 100));
}

// A change here would make old checkpoints resume in another order.
TEST(Permutation, StaysAsItIs) {
  EXPECT_THAT(permutation(0, 0, 8), ::testing::ElementsAre(7, 5, 2, 4, 1, 6, 0, 3));
}

TEST(Permutation, IsUniform) {
  std::map<std::vector<int64_t>, int> seen;
  constexpr int kDraws = 24000;
  for (uint64_t epoch = 0; epoch < kDraws; ++epoch) ++seen[permutation(11, epoch, 4)];
  EXPECT_EQ(seen.size(), 24U);
  // 1000 expected for each of the 24; six standard deviations are 186.
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, kDraws / 24, 186);
}

}  // namespace
}  // namespace drivetrain::data
