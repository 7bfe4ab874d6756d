// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

namespace drivetrain::core {
namespace {

class WriteFile : public ::testing::Test {
 protected:
  WriteFile() { std::filesystem::create_directories(folder); }
  ~WriteFile() override {
    ::chmod(folder.c_str(), 0700);
    std::filesystem::remove_all(folder);
  }

  std::string content() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  auto num_files() const {
    return std::distance(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator());
  }

  std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("write_file_" + std::to_string(::getpid()));
  std::filesystem::path path = folder / "a";
};

TEST_F(WriteFile, PutsTheTextInPlaceOfWhatWasThere) {
  for (const std::string& text :
       {std::string("one\0two", 7), std::string(), std::string(100'000, 'x')}) {
    EXPECT_EQ(write_file(path, text), "");
    EXPECT_EQ(content(), text);
    EXPECT_EQ(num_files(), 1);
  }
  struct stat facts{};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(facts.st_mode & 0777, 0666 & ~mask);
}

TEST_F(WriteFile, WithoutRoomLeavesTheOldFileAndNothingElse) {
  ASSERT_EQ(write_file(path, "old"), "");
  // The kernel refuses to write beyond this limit as it does on a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  auto* const old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string reason = write_file(path, std::string(10'000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(reason, "File too large");
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(WriteFile, TellsWhyThePlaceCannotBeWritten) {
  EXPECT_EQ(write_file(folder / "no" / "a", "x"), "No such file or directory");
  ASSERT_EQ(write_file(path, "x"), "");
  EXPECT_EQ(write_file(path / "below", "x"), "Not a directory");
  std::filesystem::create_directory(folder / "b");
  EXPECT_EQ(write_file(folder / "b", "x"), "Is a directory");
  EXPECT_EQ(num_files(), 2);
}

TEST_F(WriteFile, IsRefusedByAFolderThatIsReadOnly) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ::chmod(folder.c_str(), 0500);
  EXPECT_EQ(write_file(path, "x"), "Permission denied");
}

}  // namespace
}  // namespace drivetrain::core
