// SPDX-License-Identifier: Apache-2.0
// Where the ranks' lines go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include <unistd.h>

#include "core/text.h"
#include "launcher.h"

namespace drivetrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Checks every line of `text` against what launch_rank_program's `lines` writes; counts them by
// rank.
std::map<char, int> count_whole_lines(const std::string& text, int parity) {
  std::map<char, int> next;
  for (const std::string& line : core::split(text, '\n')) {
    if (line.empty()) continue;
    const char rank = line.at(1);
    const int i = next[rank]++ * 2 + parity;
    EXPECT_EQ(line, core::str("[", rank, "] <", std::string(static_cast<size_t>(i % 97), rank), " ",
                              i, ">"));
    if (::testing::Test::HasFailure()) break;
  }
  return next;
}

TEST(LaunchOutput, LinesAreWholeMarkedAndInOrderOnTheirOwnStream) {
  constexpr int kLines = 6000;
  const LaunchResult result = launch_and_wait(program(4, {"lines", std::to_string(kLines)}));
  EXPECT_EQ(result.code, 0);
  const std::map<char, int> all = {
      {'0', kLines / 2}, {'1', kLines / 2}, {'2', kLines / 2}, {'3', kLines / 2}};
  EXPECT_EQ(count_whole_lines(result.out, 0), all);
  EXPECT_EQ(count_whole_lines(result.err, 1), all);
}

TEST(LaunchOutput, ALineOfAMegabyteStaysWhole) {
  const LaunchResult result = launch_and_wait(program(2, {"long", "1000000"}));
  for (const char rank : {'0', '1'}) {
    const std::string line(1000000, static_cast<char>('a' + rank - '0'));
    EXPECT_NE(result.out.find(core::str("[", rank, "] ", line, "\n")), std::string::npos);
  }
  EXPECT_EQ(result.out.size(), 2 * 1000005U);
}

TEST(LaunchOutput, AnUnfinishedLastLineIsFinished) {
  const LaunchResult result = launch_and_wait(script(2, "printf 'no newline'"));
  EXPECT_THAT(result.out, HasSubstr("[0] no newline\n"));
  EXPECT_THAT(result.out, HasSubstr("[1] no newline\n"));
}

TEST(LaunchOutput, OfASingleRankIsLeftAsItIs) {
  EXPECT_EQ(launch_and_wait(script(1, "printf 'a\\rb\\n\\nno newline'")).out, "a\rb\n\nno newline");
  EXPECT_EQ(launch_and_wait(script(1, "echo x", {"--prefix"})).out, "[0] x\n");
}

TEST(LaunchOutput, CanBeOfTheMainRankOrNone) {
  EXPECT_EQ(launch_and_wait(script(2, "echo x", {"--show", "main"})).out, "[0] x\n");
  const LaunchResult quiet = launch_and_wait(script(2, "echo x; echo y >&2; exit $RANK", {"-q"}));
  EXPECT_EQ(quiet.out, "");
  EXPECT_THAT(quiet.err, Not(HasSubstr("[1]")));
  EXPECT_THAT(quiet.err, HasSubstr("rank 1"));
  EXPECT_THAT(quiet.err, HasSubstr("    | y"));
}

TEST(LaunchOutput, IsKeptInLogFiles) {
  const Folder folder;
  const LaunchResult result = launch_and_wait(
      script(2, "printf \"out $RANK $TORCHELASTIC_RESTART_COUNT\"; echo err >&2; exit $RANK",
             {"--log-dir", folder / "a/b", "--max-restarts", "1"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(contents(folder / "a/b/rank-0.out"), "out 0 0");
  EXPECT_EQ(contents(folder / "a/b/rank-1.err"), "err\n");
  EXPECT_EQ(contents(folder / "a/b/rank-1.restart-1.out"), "out 1 1");
  EXPECT_THAT(contents(folder / "a/b/error.json"), HasSubstr("\"exit_code\": 1"));
  EXPECT_THAT(result.out, HasSubstr("[1] out 1 0\n"));
}

TEST(LaunchOutput, AFullDiskDoesNotEndTheRun) {
  const Folder folder;
  ASSERT_EQ(::symlink("/dev/full", (folder / "rank-0.out").c_str()), 0);
  const LaunchResult result =
      launch_and_wait(script(2, "echo hello; sleep 0.1; echo again", {"--log-dir", folder.path()}));
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("[0] again\n"));
  EXPECT_THAT(result.err, HasSubstr("rank-0.out: No space left on device; the run goes on"));
  EXPECT_EQ(contents(folder / "rank-1.out"), "hello\nagain\n");
}

TEST(LaunchOutput, ALogFolderThatCannotBeMadeIsRefused) {
  const LaunchResult result = launch_and_wait(script(1, "true", {"--log-dir", "/proc/x"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot create --log-dir /proc/x"));
}

TEST(LaunchOutput, AClosedReaderDoesNotEndTheRun) {
  LaunchSetting setting;
  setting.closed_output = true;
  const LaunchResult result = launch_and_wait(
      script(2, "for i in $(seq 1 500); do echo line; done; echo end >&2"), setting);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err,
              HasSubstr("cannot write to standard output: Broken pipe; the run goes on"));
  EXPECT_THAT(result.err, HasSubstr("[1] end"));
}

TEST(LaunchOutput, ARankMayCloseItsStreams) {
  const LaunchResult result =
      launch_and_wait(script(2, "echo before; exec >&- 2>&-; sleep 0.2; exit $((RANK * 4))"));
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.out, HasSubstr("[1] before"));
}

TEST(LaunchOutput, AReaderThatStandsStillHoldsBackNeitherFailureNorSignal) {
  Launcher launcher(script(2, "yes | head -c 50000000 & sleep 0.3; exit $((RANK * 3))"));
  std::this_thread::sleep_for(std::chrono::milliseconds(900));  // nobody reads meanwhile
  const LaunchResult result = launcher.wait();
  EXPECT_EQ(result.code, 3);
  EXPECT_LT(result.out.size(), 10'000'000U) << "the ranks should have been held back, then ended";
}

TEST(LaunchOutput, OnATerminalRanksHaveTerminals) {
  LaunchSetting setting;
  setting.on_terminal = true;
  const LaunchResult result = launch_and_wait(program(2, {"terminals"}), setting);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("[0] in 0 out 1 err 1 columns 96"));  // 100 less "[0] "
  EXPECT_THAT(result.out, HasSubstr("[1] in 0 out 1 err 1 columns 96"));
  EXPECT_THAT(launch_and_wait(program(1, {"terminals"})).out, HasSubstr("in 0 out 0 err 0"));
}

TEST(LaunchOutput, OnATerminalTheBarOfRankZeroStaysBelow) {
  LaunchSetting setting;
  setting.on_terminal = true;
  const LaunchResult result = launch_and_wait(
      script(2,
             "if [ $RANK = 0 ]; then printf '\\r10%%'; sleep 0.4; printf '\\r20%%'; sleep 0.4; "
             "printf '\\r99%%\\n'; else sleep 0.2; echo other; sleep 0.9; fi"),
      setting);
  // The bar; erased for the line; drawn again below it; drawn anew; and kept once it ended.
  EXPECT_EQ(result.out,
            "[0] 10%"
            "\r\x1b[K[1] other\r\n[0] 10%"
            "\r\x1b[K[0] 20%"
            "\r\x1b[K[0] 99%\r\n");
}

}  // namespace
}  // namespace drivetrain::cli
