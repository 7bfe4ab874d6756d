// SPDX-License-Identifier: Apache-2.0
// A machine laid out in a temporary directory: its /proc, /dev and /sys.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace drivetrain::hardware {

class MadeMachine : public ::testing::Test {
 protected:
  MadeMachine() : root((std::filesystem::temp_directory_path() / "machine.XXXXXX").string()) {
    EXPECT_NE(::mkdtemp(root.data()), nullptr);
  }
  ~MadeMachine() override { std::filesystem::remove_all(root); }

  void put(const std::string& path, const std::string& text = "") {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }

  std::string root;
};

}  // namespace drivetrain::hardware
