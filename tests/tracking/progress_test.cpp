// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/progress.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace drivetrain {
namespace {

using ::testing::HasSubstr;

TEST(ProgressLine, ShowsBarRateAndTimeLeft) {
  const ProgressOptions options{.description = "epoch 1", .unit = "samples"};
  EXPECT_EQ(
      detail::progress_line(options, "loss 0.5", 50, 200, 10, 100),
      "epoch 1  25% [######..................] 50/200 5 samples/s, 00:10, ETA 00:30, loss 0.5");
}

TEST(ProgressLine, PlainLinesHaveNoBar) {
  EXPECT_EQ(detail::progress_line({}, "", 3, 4, 3, 0), " 75% 3/4 1 it/s, 00:03, ETA 00:01");
}

TEST(ProgressLine, UnknownTotalShowsTheCount) {
  EXPECT_EQ(detail::progress_line({}, "", 3700, 0, 3700, 0), "3700 1 it/s, 1:01:40");
}

TEST(ProgressLine, NothingYetHasNoTimeLeft) {
  EXPECT_EQ(detail::progress_line({}, "", 0, 0, 0, 0), "0 0 it/s, 00:00");
  EXPECT_EQ(detail::progress_line({}, "", 0, 5, 0, 0), "  0% 0/5 0 it/s, 00:00");
}

TEST(ProgressLine, FitsTheTerminal) {
  EXPECT_EQ(detail::progress_line({}, std::string(200, 'x'), 1, 2, 1, 40).size(), 39);
}

TEST(ProgressBar, WritesLinesToAStreamAndTheLastOneOnce) {
  std::ostringstream out;
  {
    ProgressBar bar(2, {.interval = std::chrono::milliseconds(60'000), .stream = &out});
    bar.advance();
    bar.advance();
    bar.finish();
  }
  const std::string text = out.str();
  EXPECT_THAT(text, HasSubstr("100% 2/2"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(ProgressBar, IsSilentWhenDisabled) {
  std::ostringstream out;
  ProgressBar(1, {.enabled = false, .stream = &out}).advance();
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace drivetrain
