// SPDX-License-Identifier: Apache-2.0
// Which cores and how many threads each rank of a machine gets.
#pragma once

#include <string>
#include <vector>

namespace drivetrain::cli {

// A physical core: the CPU numbers of its hardware threads, of those that the launcher may use.
using Core = std::vector<int>;

struct Machine {
  std::vector<Core> cores;  // neighbours share caches
  double quota = 0;         // CPUs' worth of time that the cgroup allows; 0: no limit
};

// This machine as the affinity mask and the cgroup of the calling process leave it.
Machine this_machine();

struct CoreShare {
  std::vector<int> cpus;  // to bind to, ascending; empty: no binding
  int threads = 1;
};

// One share per rank, all of one size: `cores / ranks` whole cores and as many threads. No binding
// where `bind` is false, where there are more ranks than cores, or where the quota is below the
// number of cores (other programs under a quota would be bound to the same first cores).
std::vector<CoreShare> share_cores(const Machine& machine, int ranks, bool bind);

// "0-3,8".
std::string cpu_list(const std::vector<int>& cpus);

}  // namespace drivetrain::cli
