// SPDX-License-Identifier: Apache-2.0
// What this machine leaves to a process, without LibTorch: system, cores, memory, limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hardware/cpu_facts.h"

namespace drivetrain::hardware {

constexpr int64_t kUnlimited = -1;

struct Limit {
  int64_t soft = kUnlimited;  // what counts
  int64_t hard = kUnlimited;  // what a user may raise it to
};

struct Space {
  int64_t total = 0;      // bytes
  int64_t available = 0;  // to this user
};

struct SystemFacts {
  std::string hostname, kernel, architecture, distribution;
  std::string processor;
  int cores = 0;                              // of the machine, that are switched on
  int allowed_cores = 0;                      // the affinity mask
  std::optional<double> quota;                // cores' worth of time that control groups allow
  int64_t machine_memory = 0;                 // bytes
  MemoryInfo memory;                          // cut by control groups
  std::optional<Space> shm;                   // /dev/shm; none where there is no such file system
  Limit open_files, processes;                // counts
  Limit locked_memory, address_space;         // bytes
  bool has_infiniband = false;                // /dev/infiniband: its drivers lock memory
  std::optional<bool> clock_is_synchronized;  // as the kernel knows; none where it does not tell

  int usable_cores() const { return hardware::usable_cores(allowed_cores, quota); }
};

// Limits, affinity, host name and clock are those of the calling process; the rest is under `root`.
SystemFacts system_facts(const std::string& root = "");

// "Debian GNU/Linux 12 (bookworm)"; "" where /etc/os-release does not tell.
std::string distribution_name(const std::string& root = "");

// The number of cores in a list of the kernel's: "0-3,8" gives 5.
int count_cores(const std::string& list);

}  // namespace drivetrain::hardware
