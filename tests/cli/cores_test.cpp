// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/cores.h"

#include <gtest/gtest.h>

namespace drivetrain::cli {
namespace {

using Cpus = std::vector<int>;

// Six cores of two hardware threads: 0 and 6, 1 and 7, ...
Machine six_cores() {
  Machine machine;
  for (int core = 0; core < 6; ++core) machine.cores.push_back({core, core + 6});
  return machine;
}

TEST(Cores, AreSharedWholeAndEqually) {
  const auto two = share_cores(six_cores(), 2, true);
  EXPECT_EQ(two[0].cpus, (Cpus{0, 1, 2, 6, 7, 8}));
  EXPECT_EQ(two[1].cpus, (Cpus{3, 4, 5, 9, 10, 11}));
  EXPECT_EQ(two[0].threads, 3);
  const auto four = share_cores(six_cores(), 4, true);  // two cores stay free
  EXPECT_EQ(four[3].cpus, (Cpus{3, 9}));
  EXPECT_EQ(four[3].threads, 1);
}

TEST(Cores, AreNeverSharedByTwoRanks) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    std::vector<int> seen;
    for (const CoreShare& share : share_cores(six_cores(), ranks, true)) {
      EXPECT_EQ(share.threads, 6 / ranks);
      EXPECT_EQ(share.cpus.size(), static_cast<size_t>(2 * share.threads));
      seen.insert(seen.end(), share.cpus.begin(), share.cpus.end());
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
  }
}

TEST(Cores, MoreRanksThanCoresBindNothing) {
  for (const CoreShare& share : share_cores(six_cores(), 7, true)) {
    EXPECT_TRUE(share.cpus.empty());
    EXPECT_EQ(share.threads, 1);
  }
}

TEST(Cores, WithoutBindingThreadsAreStillDivided) {
  const auto shares = share_cores(six_cores(), 3, false);
  EXPECT_TRUE(shares[0].cpus.empty());
  EXPECT_EQ(shares[0].threads, 2);
}

TEST(Cores, AQuotaLimitsThreadsAndBindsNothing) {
  Machine machine = six_cores();
  machine.quota = 4.5;
  EXPECT_EQ(share_cores(machine, 2, true)[1].threads, 2);
  EXPECT_TRUE(share_cores(machine, 2, true)[1].cpus.empty());
  machine.quota = 0.5;
  EXPECT_EQ(share_cores(machine, 2, true)[0].threads, 1);
  machine.quota = 12;  // more than there is
  EXPECT_EQ(share_cores(machine, 2, true)[0].threads, 3);
  EXPECT_FALSE(share_cores(machine, 2, true)[0].cpus.empty());
}

TEST(Cores, ThisMachineHasSome) {
  const Machine machine = this_machine();
  ASSERT_FALSE(machine.cores.empty());
  EXPECT_FALSE(machine.cores.front().empty());
}

TEST(Cores, ListsAreShort) {
  EXPECT_EQ(cpu_list({}), "");
  EXPECT_EQ(cpu_list({3}), "3");
  EXPECT_EQ(cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

}  // namespace
}  // namespace drivetrain::cli
