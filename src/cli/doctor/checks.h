// SPDX-License-Identifier: Apache-2.0
// What is right and wrong with a machine and an installation. Each check is a function of collected
// facts alone: it reads no file and asks nobody.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/doctor/network.h"
#include "cli/env/facts.h"

namespace drivetrain::cli {

struct Case {
  Facts facts;
  Network network;
  int ranks = 1;                // that are to run on this machine
  int64_t now = 0;              // the clock, in seconds since 1970
  int64_t command_written = 0;  // when the command's own file was; 0 where not known
};

enum class Level { ok, warning, problem };

struct Finding {
  std::string check;  // "driver"
  Level level = Level::ok;
  std::string found;
  std::string advice;  // what to do; "" where all is well
};

using Findings = std::vector<Finding>;

// Every check, in the order in which to repair.
Findings examine(const Case& patient);

// device_checks.cpp
void check_probe(const Case& patient, Findings& findings);
void check_libtorch(const Case& patient, Findings& findings);
void check_drivers(const Case& patient, Findings& findings);
void check_detection(const Case& patient, Findings& findings);
void check_devices(const Case& patient, Findings& findings);

// limit_checks.cpp
void check_cores(const Case& patient, Findings& findings);
void check_threads(const Case& patient, Findings& findings);
void check_memory(const Case& patient, Findings& findings);
void check_shared_memory(const Case& patient, Findings& findings);
void check_open_files(const Case& patient, Findings& findings);
void check_processes(const Case& patient, Findings& findings);
void check_memory_limits(const Case& patient, Findings& findings);

// setting_checks.cpp
void check_settings(const Case& patient, Findings& findings);
void check_launcher(const Case& patient, Findings& findings);
void check_hostname(const Case& patient, Findings& findings);
void check_main_address(const Case& patient, Findings& findings);
void check_store_port(const Case& patient, Findings& findings);
void check_clock(const Case& patient, Findings& findings);

const char* name_of(Level level);

}  // namespace drivetrain::cli
