// SPDX-License-Identifier: Apache-2.0
// Finds the program to run, as a shell would.
#pragma once

#include <string>

namespace drivetrain::cli {

struct FoundProgram {
  std::string path;     // empty: not usable
  std::string problem;  // then: what is wrong, and what to do
  int exit_code = 0;    // then: 127 (not found) or 126 (found, but cannot be run)
};

// A name with a slash is taken as it is; others are looked for in PATH.
FoundProgram find_program(const std::string& name);

// One argument, quoted where a shell would need it.
std::string shell_quoted(const std::string& argument);

}  // namespace drivetrain::cli
