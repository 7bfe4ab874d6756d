// SPDX-License-Identifier: Apache-2.0
// What Linux says about processor and memory: /proc, and control groups of versions 1 and 2. Every
// reader takes the root under which it looks, so that tests can lay out a machine of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace drivetrain::hardware {

// A field of /proc/<file> in kB, as "MemTotal", in bytes.
std::optional<int64_t> proc_bytes(const std::string& file, const std::string& field,
                                  const std::string& root = "");

struct MemoryInfo {
  int64_t total = 0;
  int64_t available = 0;
};

// The machine's, cut by the tightest control group around this process. Page cache that the kernel
// can drop counts as available.
MemoryInfo memory_info(const std::string& root = "");

// The cores' worth of time per time that control groups allow; none without a quota.
std::optional<double> cpu_quota(const std::string& root = "");

// min(affinity, quota rounded down), at least 1.
int usable_cores(int affinity, std::optional<double> quota);

// The indices of the cores that this process may run on.
std::vector<int> allowed_cores();

struct CpuTimes {
  int64_t busy = 0, total = 0;  // in the kernel's ticks, over `cores`
};
CpuTimes cpu_times(const std::vector<int>& cores, const std::string& root = "");

// "AMD EPYC 7R13"; the architecture where the kernel names no model.
std::string cpu_name(const std::string& root = "");

// The kernel's flags for the first core: "avx2", "asimd".
std::vector<std::string> cpu_features(const std::string& root = "");

// Sets the kernel's peak of this process's resident set to its current value; false if it refuses.
bool reset_peak_resident();

}  // namespace drivetrain::hardware
