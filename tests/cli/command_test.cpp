// SPDX-License-Identifier: Apache-2.0
// The command itself: subcommands, and that it needs neither LibTorch nor long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "core/text.h"
#include "launcher.h"
#include "run_shell.h"

namespace drivetrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ShellResult shell(const std::string& command) { return run_shell(command + " 2>&1"); }

TEST(Command, TellsItsVersionAndItsSubcommands) {
  const ShellResult version = shell(DRIVETRAIN_COMMAND " --version");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.text, "drivetrain " DRIVETRAIN_VERSION "\n");
  const ShellResult help = shell(DRIVETRAIN_COMMAND " --help");
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.text, HasSubstr("launch      Run a program"));
  EXPECT_THAT(help.text, HasSubstr("env         Print what is known"));
  EXPECT_THAT(help.text, HasSubstr("doctor      Check this machine"));
  EXPECT_EQ(shell(DRIVETRAIN_COMMAND).code, 2);
}

TEST(Command, FailsWhereItsOutputIsLost) {
  for (const char* command : {" env", " --version", " --help"}) {
    const ShellResult result =
        run_shell(core::str(DRIVETRAIN_COMMAND, command, " 2>&1 >/dev/full"));
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_EQ(result.text,
              "drivetrain: the output could not be written; allowed: a standard output with room "
              "for it\n");
  }
}

TEST(Command, SuggestsTheNearestSubcommand) {
  const ShellResult result = shell(DRIVETRAIN_COMMAND " lanch x");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.text, HasSubstr("unknown command \"lanch\"; did you mean \"launch\"?"));
}

TEST(Command, DoesNotLoadLibTorch) {
  const ShellResult needed = shell("readelf -d " DRIVETRAIN_COMMAND " | grep NEEDED");
  EXPECT_EQ(needed.code, 0);
  EXPECT_THAT(needed.text, HasSubstr("libc.so"));
  for (const char* heavy : {"torch", "c10", "drivetrain"})
    EXPECT_THAT(needed.text, Not(HasSubstr(heavy)));
  EXPECT_THAT(shell("ldd " DRIVETRAIN_COMMAND).text, Not(HasSubstr("torch")));
}

// The fastest of several: other programs share the machine. Limits leave room for sanitizers.
template <class Deed>
double fastest(const Deed& deed) {
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    const auto start = std::chrono::steady_clock::now();
    deed();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

TEST(Command, StartsInMilliseconds) {
  EXPECT_LT(fastest([] { shell(DRIVETRAIN_COMMAND " --version"); }), 0.05);
  EXPECT_LT(fastest([] { shell(DRIVETRAIN_COMMAND " env --probe /nowhere"); }), 0.1);
  EXPECT_LT(fastest([] { launch_and_wait({"--cpu", "-n", "2", "true"}); }), 0.1);
}

}  // namespace
}  // namespace drivetrain::cli
