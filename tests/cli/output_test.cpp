// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/output.h"

#include <drivetrain/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/text.h"
#include "expect_error.h"

namespace drivetrain::cli {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> lines_of(LineSplitter& splitter, std::string_view chunk) {
  std::vector<std::string> lines;
  splitter.feed(chunk, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST(LineSplitter, GivesWholeLinesHoweverTheyArrive) {
  LineSplitter splitter;
  EXPECT_THAT(lines_of(splitter, "a\nb"), ElementsAre("a\n"));
  EXPECT_THAT(lines_of(splitter, ""), ElementsAre());
  EXPECT_THAT(lines_of(splitter, "c"), ElementsAre());
  EXPECT_THAT(lines_of(splitter, "d\n\ne\nf"), ElementsAre("bcd\n", "\n", "e\n"));
  EXPECT_EQ(splitter.take_partial(), "f");
  EXPECT_EQ(splitter.partial(), "");
}

TEST(LineSplitter, CutsALineWithoutEnd) {
  LineSplitter splitter;
  const std::string chunk(1 << 20, 'x');
  size_t pieces = 0;
  for (int i = 0; i < 40; ++i) pieces += lines_of(splitter, chunk).size();
  EXPECT_EQ(pieces, 2U);
  EXPECT_LE(splitter.partial().size(), LineSplitter::kLongest);
}

TEST(VisiblePart, IsWhatFollowsTheLastReturn) {
  EXPECT_EQ(visible_part("plain\n"), "plain");
  EXPECT_EQ(visible_part("\r10%\r20%"), "20%");
  EXPECT_EQ(visible_part("10%\r20%\r"), "20%");
  EXPECT_EQ(visible_part("windows\r\n"), "windows");
  EXPECT_EQ(visible_part("\r"), "");
  EXPECT_EQ(visible_part(""), "");
}

TEST(LastLines, KeepsTheLastTwentyCutToSize) {
  LastLines last;
  for (int i = 0; i < 25; ++i) last.add(core::str("line ", i, "\n"));
  last.add(std::string(5000, 'x') + "\n");
  ASSERT_EQ(last.lines().size(), LastLines::kCount);
  EXPECT_EQ(last.lines().front(), "line 6");
  EXPECT_EQ(last.lines().back().size(), 2000U);
}

TEST(LogFile, KeepsEveryByte) {
  const std::string path = ::testing::TempDir() + core::str("log-", ::getpid());
  LogFile log(path);
  EXPECT_EQ(log.write(std::string_view("a\0b\r\n", 5)), "");
  std::stringstream read;
  read << std::ifstream(path).rdbuf();
  EXPECT_EQ(read.str(), std::string("a\0b\r\n", 5));
  std::filesystem::remove(path);
}

TEST(LogFile, AFullDiskIsToldOnce) {
  LogFile full("/dev/full");
  EXPECT_THAT(full.write("x"), ::testing::HasSubstr("cannot write log file /dev/full: No space"));
  EXPECT_EQ(full.write("x"), "");
  EXPECT_ERROR(LogFile("/nowhere/x"), ConfigError, "cannot create log file /nowhere/x: No such");
}

}  // namespace
}  // namespace drivetrain::cli
