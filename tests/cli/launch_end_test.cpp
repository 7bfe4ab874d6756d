// SPDX-License-Identifier: Apache-2.0
// Signals, and that nothing outlives the launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "core/text.h"
#include "launcher.h"

namespace drivetrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void expect_all_gone(const std::vector<int>& pids, double seconds = 2) {
  for (const int pid : pids) EXPECT_TRUE(is_gone(pid, seconds)) << "process " << pid << " is left";
}

int parent_of(pid_t pid) {
  const std::string stat = contents(core::str("/proc/", pid, "/stat"));
  return std::atoi(stat.c_str() + stat.rfind(") ") + 4);
}

size_t scratch_folders(const Folder& folder) {
  const std::filesystem::directory_iterator entries(folder.path());
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

class LaunchEnd : public ::testing::Test {
 protected:
  // Two ranks, each with a child, a child in its own session and a daemon: eight stubborn ones.
  LaunchEnd() { setting_.environment = {"TMPDIR=" + scratch_.path()}; }
  Folder scratch_;
  LaunchSetting setting_;
};

TEST_F(LaunchEnd, BySigkillOfTheLauncherLeavesNoOrphan) {
  Launcher launcher(program(2, {"tree"}), setting_);
  const auto pids = numbers_after(launcher.wait_for("pid ", 8), "pid ");
  ASSERT_EQ(pids.size(), 8U);
  EXPECT_EQ(scratch_folders(scratch_), 1U);
  launcher.signal(SIGKILL);
  const LaunchResult result = launcher.wait();
  EXPECT_EQ(result.code, -SIGKILL);
  expect_all_gone(pids);
  EXPECT_THAT(result.err, HasSubstr("the launcher was killed; so were its ranks"));
  EXPECT_EQ(scratch_folders(scratch_), 0U);
}

TEST_F(LaunchEnd, BySigkillOfTheSupervisorLeavesNoOrphan) {
  Launcher launcher(program(2, {"tree"}, {"--no-prefix"}), setting_);
  const auto pids = numbers_after(launcher.wait_for("pid ", 8), "pid ");
  // Of every process that spoke, climb to the launcher's child.
  pid_t supervisor = pids[0];
  while (parent_of(supervisor) != launcher.pid()) supervisor = parent_of(supervisor);
  ::kill(supervisor, SIGKILL);
  const LaunchResult result = launcher.wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  expect_all_gone(pids);
  EXPECT_THAT(result.err, HasSubstr("supervisor was ended by signal 9"));
  EXPECT_EQ(scratch_folders(scratch_), 0U);
}

TEST_F(LaunchEnd, BySigkillOfBothLeavesNoRank) {
  Launcher launcher(program(2, {"stubborn"}), setting_);
  const auto pids = numbers_after(launcher.wait_for("pid ", 2), "pid ");
  const pid_t supervisor = parent_of(pids[0]);
  ::kill(supervisor, SIGSTOP);  // so that it can do nothing more
  launcher.signal(SIGKILL);
  ::kill(supervisor, SIGKILL);
  launcher.wait();
  expect_all_gone(pids);
}

TEST_F(LaunchEnd, OfTheRanksEndsWhatTheyLeftBehind) {
  Launcher launcher(program(2, {"tree", "0"}), setting_);
  const auto pids = numbers_after(launcher.wait_for("pid ", 8), "pid ");
  const LaunchResult result = launcher.wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("processes that the ranks left behind"));
  expect_all_gone(pids, 0);
}

TEST_F(LaunchEnd, AfterAFailureEndsWhatTheyLeftBehind) {
  Launcher launcher(program(2, {"tree", "6"}), setting_);
  const auto pids = numbers_after(launcher.wait_for("pid ", 8), "pid ");
  EXPECT_EQ(launcher.wait().code, 6);
  expect_all_gone(pids, 0);
}

TEST_F(LaunchEnd, BySignalIsPassedOnOnceAndItsCodeSaysSo) {
  for (const auto& [signal, name] : {std::pair(SIGINT, "INT"), std::pair(SIGTERM, "TERM"),
                                     std::pair(SIGHUP, "HUP"), std::pair(SIGQUIT, "QUIT")}) {
    Launcher launcher(script(2, core::str("trap 'echo got $RANK; exit 0' ", name,
                                          "; echo ready; while :; do sleep 0.01; done")));
    launcher.wait_for("ready", 2);
    launcher.signal(signal);
    const LaunchResult result = launcher.wait();
    EXPECT_EQ(result.code, 128 + signal);
    EXPECT_EQ(numbers_after(result.out, "got ").size(), 2U) << result.out;
    EXPECT_THAT(result.err, HasSubstr(core::str("drivetrain: ended by SIG", name, "\n")));
  }
}

TEST_F(LaunchEnd, BySignalKillsWhoIgnoresItAfterTheGracePeriod) {
  Launcher launcher(program(2, {"stubborn"}, {"--grace-period", "0.3"}));
  const auto pids = numbers_after(launcher.wait_for("pid ", 2), "pid ");
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait().code, 143);
  expect_all_gone(pids, 0);
}

TEST_F(LaunchEnd, ByCtrlCReachesEachRankOnce) {
  setting_.on_terminal = true;
  Launcher launcher(script(2,
                           "trap 'echo \"got $RANK\"; sleep 0.1; exit 0' INT; echo ready; "
                           "while :; do sleep 0.01; done"),
                    setting_);
  launcher.wait_for("ready", 2);
  launcher.type("\x03");
  const LaunchResult result = launcher.wait();
  EXPECT_EQ(result.code, 130);
  EXPECT_EQ(numbers_after(result.out, "got ").size(), 2U) << result.out;
  EXPECT_THAT(result.out, HasSubstr("drivetrain: ended by SIGINT"));
}

TEST_F(LaunchEnd, ByASecondCtrlCIsAtOnce) {
  setting_.on_terminal = true;
  Launcher launcher(program(2, {"stubborn"}, {"--grace-period", "60"}), setting_);
  const auto pids = numbers_after(launcher.wait_for("pid ", 2), "pid ");
  launcher.type("\x03");
  EXPECT_FALSE(is_gone(pids[0], 0.2));
  launcher.type("\x03");
  EXPECT_EQ(launcher.wait().code, 130);
  expect_all_gone(pids, 0);
}

TEST_F(LaunchEnd, IgnoresTheSignalsThatItWasStartedToIgnore) {
  std::signal(SIGHUP, SIG_IGN);  // nohup
  Launcher launcher(script(1, "echo ready; sleep 0.4; echo done"));
  std::signal(SIGHUP, SIG_DFL);
  launcher.wait_for("ready");
  launcher.signal(SIGHUP);
  const LaunchResult result = launcher.wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("done"));
}

TEST_F(LaunchEnd, StopsAndContinuesTheRanksWithTheLauncher) {
  Launcher launcher(script(1, "echo \"pid $$\"; exec sleep 60"));
  const int pid = numbers_after(launcher.wait_for("pid "), "pid ").at(0);
  const auto state = [pid] {
    const std::string stat = contents(core::str("/proc/", pid, "/stat"));
    return stat[stat.rfind(") ") + 2];
  };
  launcher.signal(SIGTSTP);
  for (int i = 0; i < 200 && state() != 'T'; ++i) ::usleep(5000);
  EXPECT_EQ(state(), 'T');
  launcher.signal(SIGCONT);
  for (int i = 0; i < 200 && state() == 'T'; ++i) ::usleep(5000);
  EXPECT_NE(state(), 'T');
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait().code, 143);
}

TEST_F(LaunchEnd, UserSignalsReachTheRanksAndEndNothing) {
  Launcher launcher(script(2,
                           "trap 'echo saved; exit 0' USR1; echo ready; "
                           "while :; do sleep 0.01; done"));
  launcher.wait_for("ready", 2);
  launcher.signal(SIGUSR1);
  const LaunchResult result = launcher.wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("[1] saved"));
}

}  // namespace
}  // namespace drivetrain::cli
