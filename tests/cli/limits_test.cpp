// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/limits.h"

#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/launch/options.h"
#include "core/text.h"
#include "expect_error.h"

namespace drivetrain::cli {
namespace {

TEST(Limits, AreFiveFilesARankAndHalfOfTheProcesses) {
  EXPECT_EQ(most_local_ranks(1024, 4'194'304), 192);
  EXPECT_EQ(most_local_ranks(1'048'576, 1000), 500);
  EXPECT_EQ(most_local_ranks(10, 1'000'000), 1);
  EXPECT_EQ(most_local_ranks(RLIM_INFINITY, RLIM_INFINITY), 1'048'576);
}

TEST(Limits, MoreRanksAreRefusedBeforeAnyIsStarted) {
  std::ostringstream help;
  const int too_many = most_local_ranks() + 1;
  EXPECT_ERROR(parse_launch_options(
                   {"--cpu", "-n", std::to_string(2 * too_many), "--num-machines", "2",
                    "--main-process-ip", "10.0.0.1", "--main-process-port", "29500", "./train"},
                   help),
               ConfigError,
               core::str("--num-processes is ", 2 * too_many, ", ", too_many,
                         " of them here; allowed: up to ", too_many - 1, " on this machine"));
}

TEST(Limits, TheLauncherTakesWhatItMayAndRemembersWhatItHad) {
  rlimit original{};
  ::getrlimit(RLIMIT_NOFILE, &original);
  const rlimit less{original.rlim_cur / 2, original.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &less);
  const OpenFiles files;
  EXPECT_EQ(files.before.rlim_cur, less.rlim_cur);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, original.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &original);
}

}  // namespace
}  // namespace drivetrain::cli
