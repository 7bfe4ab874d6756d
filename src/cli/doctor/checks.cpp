// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/checks.h"

namespace drivetrain::cli {

Findings examine(const Case& patient) {
  Findings findings;
  for (const auto check :
       {check_probe, check_libtorch, check_drivers, check_detection, check_devices, check_cores,
        check_threads, check_memory, check_shared_memory, check_open_files, check_processes,
        check_memory_limits, check_settings, check_launcher, check_hostname, check_main_address,
        check_store_port, check_clock})
    check(patient, findings);
  return findings;
}

const char* name_of(Level level) {
  switch (level) {
    case Level::ok:
      return "ok";
    case Level::warning:
      return "warning";
    case Level::problem:
      return "problem";
  }
  return "";
}

}  // namespace drivetrain::cli
