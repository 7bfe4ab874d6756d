// SPDX-License-Identifier: Apache-2.0
// The options that `drivetrain env` and `drivetrain doctor` share.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace drivetrain::cli {

struct ProbeOptions {
  bool json = false;
  std::string probe;           // path; empty: the one that belongs to this command
  std::string timeout = "30";  // seconds, as given

  // Throws ConfigError if the time is not a number from 0.1 to 3600.
  std::chrono::milliseconds limit() const;
};

void declare(CLI::App& app, ProbeOptions& options);

// False where --help was asked for and printed. Throws ConfigError for what is not declared, with
// the nearest name.
bool parse(CLI::App& app, const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace drivetrain::cli
