// SPDX-License-Identifier: Apache-2.0
// The options of `drivetrain launch` as they are declared and explained.
#pragma once

#include <CLI/CLI.hpp>
#include <ostream>
#include <string>

namespace drivetrain::cli {

// What CLI11 fills in: text, so that every value is parsed, and refused, in one manner.
struct Texts {
  std::string num_processes, num_machines, machine_rank, main_process_ip, main_process_port;
  std::string num_threads, timeout, run_id, max_restarts, monitor_interval, grace_period;
  std::string log_dir, error_file, show;
  bool cpu = false, debug = false, dry_run = false, quiet = false;
  bool bind_cores = false, prefix = false, split_devices = false;
};

void declare(CLI::App& app, Texts& texts);

void print_help(const CLI::App& app, std::ostream& out);

}  // namespace drivetrain::cli
