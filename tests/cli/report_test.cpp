// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int code(int value) { return value << 8; }

RankOutcome outcome(int rank, int status, int order) {
  RankOutcome out;
  out.rank = rank;
  out.pid = 100 + rank;
  out.status = status;
  out.order = order;
  return out;
}

RankOutcome ended(int rank, int order) {
  RankOutcome out = outcome(rank, SIGTERM, order);
  out.was_ended = true;
  return out;
}

RankOutcome with_error(RankOutcome out, const std::string& message, bool blames_peer) {
  out.error = ErrorRecord{message, "all_reduce", 1.5, blames_peer};
  return out;
}

TEST(Blame, NobodyWhereAllReturnedZero) {
  EXPECT_EQ(first_failure({outcome(0, 0, 1), outcome(1, 0, 0)}), std::nullopt);
}

TEST(Blame, FallsOnTheFirstToFail) {
  EXPECT_EQ(first_failure({outcome(0, code(1), 2), outcome(1, SIGSEGV, 1), outcome(2, 0, 0)}), 1U);
}

TEST(Blame, NeverOnWhoWasEnded) {
  EXPECT_EQ(first_failure({ended(0, 0), outcome(1, code(3), 1)}), 1U);
}

TEST(Blame, NotOnWhoBlamesAPeer) {
  const RankOutcome victim = with_error(outcome(0, code(1), 0), "rank 1 is gone", true);
  EXPECT_EQ(first_failure({victim, outcome(1, SIGKILL, 1)}), 1U);
  EXPECT_EQ(first_failure({victim, with_error(outcome(1, code(1), 1), "bad input", false)}), 1U);
  EXPECT_EQ(first_failure({victim, ended(1, 1)}), 0U);  // the culprit is on another machine
}

TEST(Blame, OnWhoLeftAnErrorEvenIfItHadToBeEnded) {
  const RankOutcome victim = with_error(outcome(0, code(1), 0), "rank 1 is gone", true);
  EXPECT_EQ(first_failure({victim, with_error(ended(1, 1), "bad input", false)}), 1U);
}

TEST(Blame, OnWhoWasKilledRatherThanOnErrorsThatCameLater) {
  const RankOutcome later = with_error(outcome(0, code(1), 1), "connection lost", false);
  EXPECT_EQ(first_failure({later, outcome(1, SIGKILL, 0)}), 1U);
}

TEST(Describe, NamesCodesAndSignals) {
  EXPECT_EQ(describe(code(3)), "exit code 3");
  EXPECT_EQ(describe(SIGSEGV), "signal 11 (SIGSEGV: Segmentation fault)");
  EXPECT_EQ(exit_code(code(3)), 3);
  EXPECT_EQ(exit_code(SIGSEGV), 139);
}

TEST(FailureText, TellsEverythingKnown) {
  RankOutcome first = with_error(outcome(1, code(3), 0), "bad input", false);
  first.last_lines = {"boom", "bang"};
  RankOutcome killed = ended(3, 3);
  killed.was_killed = true;
  const std::string text = failure_text({ended(0, 1), first, outcome(2, code(4), 2), killed}, 1);
  EXPECT_THAT(text, HasSubstr("rank 1 (pid 101) failed: exit code 3\n"));
  EXPECT_THAT(text, HasSubstr("standard error:\n    | boom\n    | bang\n"));
  EXPECT_THAT(text, HasSubstr("it was in: all_reduce\n  error: bad input"));
  EXPECT_THAT(text, HasSubstr("failed after it: rank 2\n"));
  EXPECT_THAT(text, HasSubstr("ended because of it: ranks 0, 3\n"));
  EXPECT_THAT(text, HasSubstr("killed after the grace period: rank 3"));
}

TEST(FailureText, TellsWhoHadLeftAndWhatAKillMayMean) {
  const std::string text = failure_text({outcome(0, SIGKILL, 1), outcome(1, 0, 0)}, 0);
  EXPECT_THAT(text, HasSubstr("signal 9 (SIGKILL: Killed); the kernel sends it where memory has "
                              "run out: see dmesg"));
  EXPECT_THAT(text, HasSubstr("\n  ended before it, with exit code 0: rank 1"));
  const std::string later = failure_text({outcome(0, code(1), 0), outcome(1, 0, 1)}, 0);
  EXPECT_THAT(later, Not(HasSubstr("ended before it")));
  EXPECT_THAT(later, Not(HasSubstr("dmesg")));
}

class ErrorFile : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + core::str("error-", ::getpid(), ".json");
  void write(const std::string& text) { std::ofstream(path_) << text; }
  ~ErrorFile() override { std::filesystem::remove(path_); }
};

TEST_F(ErrorFile, OfARankIsReadLeniently) {
  EXPECT_FALSE(read_error_record(path_));
  for (const char* bad : {"", "{", "[1]", "null", "\"text\""}) {
    write(bad);
    EXPECT_FALSE(read_error_record(path_)) << bad;
  }
  write(R"({"rank": 1, "message": "m", "collective": null, "time": 7.5, "peer": null})");
  const auto error = read_error_record(path_);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "m");
  EXPECT_EQ(error->collective, "");
  EXPECT_EQ(error->time, 7.5);
  EXPECT_FALSE(error->blames_peer);
}

TEST_F(ErrorFile, OfARankMayBlameAPeer) {
  write(R"({"message": "connection lost", "peer": 0})");
  EXPECT_TRUE(read_error_record(path_)->blames_peer);
  write(R"({"message": "a peer failed"})");
  EXPECT_TRUE(read_error_record(path_)->blames_peer);
}

TEST_F(ErrorFile, OfTheLaunchHoldsEveryRank) {
  RankOutcome first = with_error(outcome(1, code(3), 0), "bad \xff input", false);
  first.last_lines = {"boom"};
  EXPECT_EQ(write_error_file(path_, {ended(0, 1), first, outcome(2, 0, 2)}, 1,
                             {"id", {"./train", "x"}, 2, 3}),
            "");
  std::ifstream file(path_);
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["exit_code"], 3);
  EXPECT_EQ(report["restarts"], 2);
  EXPECT_EQ(report["run_id"], "id");
  EXPECT_EQ(report["command"][1], "x");
  EXPECT_EQ(report["first_failure"]["rank"], 1);
  EXPECT_EQ(report["first_failure"]["exit_code"], 3);
  EXPECT_EQ(report["first_failure"]["signal"], nullptr);
  EXPECT_EQ(report["first_failure"]["stderr"][0], "boom");
  EXPECT_EQ(report["first_failure"]["error"]["collective"], "all_reduce");
  EXPECT_EQ(report["ranks"][0]["outcome"], "ended");
  EXPECT_EQ(report["ranks"][0]["signal"], "SIGTERM");
  EXPECT_EQ(report["ranks"][1]["outcome"], "failed");
  EXPECT_EQ(report["ranks"][2]["outcome"], "succeeded");
  EXPECT_THAT(write_error_file("/nowhere/e.json", {first}, 0, {}),
              HasSubstr("cannot write error file /nowhere/e.json: No such file"));
}

}  // namespace
}  // namespace drivetrain::cli
