// SPDX-License-Identifier: Apache-2.0
// A command as a shell runs it.
#pragma once

#include <array>
#include <cstdio>
#include <string>

#include <sys/wait.h>

namespace drivetrain::cli {

struct ShellResult {
  int code;
  std::string text;  // standard output, with standard error if the command says so
};

inline ShellResult run_shell(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  for (size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    text.append(buffer.data(), n);
  return {WEXITSTATUS(::pclose(pipe)), text};
}

}  // namespace drivetrain::cli
