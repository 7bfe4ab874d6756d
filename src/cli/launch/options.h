// SPDX-License-Identifier: Apache-2.0
// The command line of `drivetrain launch`, parsed and checked.
#pragma once

#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace drivetrain::cli {

// Whose lines reach the launcher's own standard output and error.
enum class Show { all, main, none };

struct LaunchOptions {
  int num_processes = 1;  // over all machines
  int num_machines = 1;
  int machine_rank = 0;
  std::string main_process_ip = "127.0.0.1";
  int main_process_port = 0;  // 0: a free one
  bool cpu = false;
  bool debug = false;
  bool dry_run = false;
  bool bind_cores = false;
  std::optional<int> num_threads;
  std::string timeout;  // seconds, as given; empty: the library's default
  std::string run_id;   // empty: a fresh one
  int max_restarts = 0;
  std::chrono::milliseconds monitor_interval{100};
  std::chrono::milliseconds grace_period{500};
  std::string log_dir;     // empty: no log files
  std::string error_file;  // empty: none
  Show show = Show::all;
  // --split-devices: the variable that hides devices, and its value for each rank of this machine.
  // Empty: every rank sees every device.
  std::string visible_devices;
  std::vector<std::string> device_of_rank;
  std::optional<bool> prefix;
  std::vector<std::string> command;  // PROGRAM and its arguments

  int local_world_size() const { return num_processes / num_machines; }
};

// Nothing where --help was asked for and printed to `out`. Throws ConfigError if an option is
// unknown, out of range or contradicts another, or if PROGRAM is missing.
std::optional<LaunchOptions> parse_launch_options(const std::vector<std::string>& arguments,
                                                  std::ostream& out);

}  // namespace drivetrain::cli
