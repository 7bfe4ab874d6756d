// SPDX-License-Identifier: Apache-2.0
// What a failing rank brings about.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "launcher.h"

namespace drivetrain::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LaunchFailure, EndsThePeersWithinASecondAndTellsWhy) {
  const LaunchResult result = launch_and_wait(script(
      3, "if [ $RANK = 1 ]; then sleep 0.2; echo boom >&2; exit 3; fi; sleep 60; echo too late"));
  EXPECT_EQ(result.code, 3);
  EXPECT_LT(result.seconds, 1.2);
  EXPECT_THAT(result.err, HasSubstr("[1] boom\n"));
  EXPECT_THAT(result.err, HasSubstr("drivetrain: rank 1 (pid "));
  EXPECT_THAT(result.err, HasSubstr(") failed: exit code 3\n"));
  EXPECT_THAT(result.err, HasSubstr("    | boom\n"));
  EXPECT_THAT(result.err, HasSubstr("ended because of it: ranks 0, 2"));
  EXPECT_THAT(result.err, Not(HasSubstr("killed")));
  EXPECT_THAT(result.out, Not(HasSubstr("too late")));
}

TEST(LaunchFailure, NamesTheSignal) {
  const LaunchResult result =
      launch_and_wait(script(2, "if [ $RANK = 0 ]; then kill -SEGV $$; fi; sleep 60"));
  EXPECT_EQ(result.code, 139);
  EXPECT_THAT(result.err, HasSubstr("failed: signal 11 (SIGSEGV: Segmentation fault)"));
}

TEST(LaunchFailure, KillsWhoIgnoresSigterm) {
  Launcher launcher(script(2, core::str("if [ $RANK = 1 ]; then sleep 0.3; exit 5; fi; exec ",
                                        DRIVETRAIN_RANK_PROGRAM, " stubborn")));
  const int pid = numbers_after(launcher.wait_for("pid "), "pid ").at(0);
  const LaunchResult result = launcher.wait();
  EXPECT_EQ(result.code, 5);
  EXPECT_LT(result.seconds, 1.6);  // 0.3 s, and less than a second from there
  EXPECT_THAT(result.err, HasSubstr("killed after the grace period: rank 0"));
  EXPECT_TRUE(is_gone(pid, 0));
}

TEST(LaunchFailure, AStoppedRankIsEndedToo) {
  const LaunchResult result = launch_and_wait(
      script(2, "if [ $RANK = 1 ]; then sleep 0.3; exit 5; fi; kill -STOP $$; sleep 60"));
  EXPECT_EQ(result.code, 5);
  EXPECT_LT(result.seconds, 1.6);
}

TEST(LaunchFailure, IsBlamedOnTheCauseNotOnItsConsequences) {
  // Rank 0 loses its peer, says so and is gone before the peer itself is.
  const LaunchResult result =
      launch_and_wait(script(2,
                             "if [ $RANK = 0 ]; then "
                             "echo '{\"rank\": 0, \"message\": \"connection lost\", \"peer\": 1}' "
                             "> $DRIVETRAIN_ERROR_FILE; "
                             "exit 1; fi; sleep 0.25; echo culprit >&2; exit 7"));
  EXPECT_EQ(result.code, 7);
  EXPECT_THAT(result.err, HasSubstr("rank 1 (pid "));
  EXPECT_THAT(result.err, HasSubstr("| culprit"));
  EXPECT_THAT(result.err, HasSubstr("failed after it: rank 0"));
}

TEST(LaunchFailure, OfAPeerElsewhereIsStillReported) {
  const LaunchResult result = launch_and_wait(script(
      2,
      "if [ $RANK = 0 ]; then "
      "echo '{\"message\": \"rank 9 is gone\", \"peer\": 9}' > $DRIVETRAIN_ERROR_FILE; exit 4; fi; "
      "sleep 60"));
  EXPECT_EQ(result.code, 4);
  EXPECT_LT(result.seconds, 1.3);
  EXPECT_THAT(result.err, HasSubstr("error: rank 9 is gone"));
}

TEST(LaunchFailure, IsWrittenAsJson) {
  const Folder folder;
  const std::string file = folder / "failure.json";
  const LaunchResult result = launch_and_wait(
      script(2,
             "if [ $RANK = 1 ]; then echo boom >&2; "
             "echo '{\"rank\": 1, \"message\": \"bad input\", \"collective\": \"broadcast\", "
             "\"time\": 12.5}' > $DRIVETRAIN_ERROR_FILE; exit 3; fi; sleep 60",
             {"--error-file", file}));
  EXPECT_THAT(result.err, HasSubstr("it was in: broadcast\n  error: bad input\n"));
  EXPECT_THAT(result.err, HasSubstr("error file: " + file));
  const json report = json::parse(contents(file));
  EXPECT_EQ(report["exit_code"], 3);
  EXPECT_EQ(report["first_failure"]["rank"], 1);
  EXPECT_EQ(report["first_failure"]["error"]["message"], "bad input");
  EXPECT_EQ(report["first_failure"]["stderr"], json::array({"boom"}));
  EXPECT_EQ(report["ranks"][0]["outcome"], "ended");
  EXPECT_EQ(report["ranks"][0]["signal"], "SIGTERM");
  launch_and_wait(script(1, "true", {"--error-file", file}));
  EXPECT_EQ(contents(file), "") << "a later success leaves no old failure";
}

TEST(LaunchFailure, OneSuccessIsNoReasonToEndTheOthers) {
  const LaunchResult result =
      launch_and_wait(script(2, "if [ $RANK = 0 ]; then exit 0; fi; sleep 0.4; echo done"));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "[1] done\n");
  EXPECT_EQ(result.err, "");
}

TEST(LaunchFailure, RestartsAllRanksAsOftenAsAllowed) {
  const LaunchResult result =
      launch_and_wait(script(2,
                             "echo attempt $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS; "
                             "if [ $RANK = 1 ]; then exit 9; fi; sleep 60",
                             {"--max-restarts", "2"}));
  EXPECT_EQ(result.code, 9);
  for (int attempt = 0; attempt < 3; ++attempt)
    EXPECT_THAT(result.out, HasSubstr(core::str("[0] attempt ", attempt, "/2\n")));
  EXPECT_THAT(result.err, HasSubstr("restarting all ranks (1 of 2)\n"));
  EXPECT_THAT(result.err, HasSubstr("restarting all ranks (2 of 2)\n"));
}

TEST(LaunchFailure, ARestartMeetsOnTheSamePortWithoutTheDead) {
  // In the first attempt somebody connects, calls itself rank 5 and dies before it is accepted.
  const std::string meet = core::str(DRIVETRAIN_RANK_PROGRAM, " meet");
  const LaunchResult result = launch_and_wait(
      script(2,
             "echo \"port $MASTER_PORT\"; if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exec " +
                 meet + "; fi; if [ $RANK = 1 ]; then RANK=5 " + meet + "; exit 1; fi; sleep 60",
             {"--max-restarts", "1"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[0] sum 1 "));
  const std::vector<int> ports = numbers_after(result.out, "port ");
  for (const int port : ports) EXPECT_EQ(port, ports[0]);
}

TEST(LaunchFailure, WithinTheMonitorIntervalIsNotCausedByTheLauncher) {
  const auto run = [](const char* interval) {
    return launch_and_wait(script(2, "if [ $RANK = 0 ]; then exit 3; fi; sleep 0.3; exit 4",
                                  {"--monitor-interval", interval}));
  };
  const LaunchResult at_once = run("0");
  EXPECT_EQ(at_once.code, 3);
  EXPECT_THAT(at_once.err, HasSubstr("ended because of it: rank 1"));
  const LaunchResult patient = run("5");
  EXPECT_EQ(patient.code, 3);
  EXPECT_LT(patient.seconds, 2);  // over once all have ended
  EXPECT_THAT(patient.err, HasSubstr("failed after it: rank 1"));
}

TEST(LaunchFailure, KeepsTheLastTwentyLinesOfErrors) {
  const LaunchResult result = launch_and_wait(script(
      1, "for i in $(seq 1 30); do echo \"line $i\" >&2; done; printf 'no newline' >&2; exit 1"));
  EXPECT_THAT(result.err, HasSubstr("standard error:\n    | line 12\n"));
  EXPECT_THAT(result.err, HasSubstr("    | line 30\n    | no newline\n"));
}

}  // namespace
}  // namespace drivetrain::cli
