// SPDX-License-Identifier: Apache-2.0
// A subcommand of `drivetrain`: one file each, and one row in the table of main.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace drivetrain::cli {

struct Subcommand {
  std::string_view name;
  std::string_view summary;
  // Takes what follows the name, returns the exit code. Throws drivetrain::Error.
  int (*run)(const std::vector<std::string>& arguments);
};

int launch(const std::vector<std::string>& arguments);
int env(const std::vector<std::string>& arguments);
int doctor(const std::vector<std::string>& arguments);

}  // namespace drivetrain::cli
