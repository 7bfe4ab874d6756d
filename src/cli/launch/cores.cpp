// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include <sched.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

// The kernel refuses a set smaller than its own: grow until it fits.
std::vector<int> allowed_cpus() {
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(static_cast<size_t>(size)),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    if (::sched_getaffinity(0, bytes, set.get()) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < size; ++cpu)
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set.get())) cpus.push_back(cpu);
    return cpus;
  }
  return {0};
}

int read_number(const std::string& path, int fallback) {
  int value = fallback;
  std::ifstream(path) >> value;
  return value;
}

std::vector<Core> group_by_core(const std::vector<int>& cpus) {
  std::map<std::pair<int, int>, Core> cores;
  for (const int cpu : cpus) {
    const std::string folder = str("/sys/devices/system/cpu/cpu", cpu, "/topology/");
    const int package = read_number(folder + "physical_package_id", 0);
    cores[{package, read_number(folder + "core_id", cpu)}].push_back(cpu);
  }
  std::vector<Core> out;
  out.reserve(cores.size());
  for (auto& [place, core] : cores) out.push_back(std::move(core));
  return out;
}

// cgroup v2: "max 100000" or "200000 100000" in every folder from ours up to the root.
double quota_v2(std::string group) {
  double least = 0;
  while (true) {
    std::ifstream file("/sys/fs/cgroup" + group + "/cpu.max");
    double quota = 0;
    double period = 0;
    if (file >> quota >> period && period > 0)
      least = least == 0 ? quota / period : std::min(least, quota / period);
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return least;
    group.resize(slash);
  }
}

double quota_v1(const std::string& group) {
  for (const std::string& root :
       {"/sys/fs/cgroup/cpu" + group, std::string("/sys/fs/cgroup/cpu")}) {
    const int quota = read_number(root + "/cpu.cfs_quota_us", 0);
    const int period = read_number(root + "/cpu.cfs_period_us", 0);
    if (quota > 0 && period > 0) return static_cast<double>(quota) / period;
  }
  return 0;
}

// Lines of /proc/self/cgroup: "0::/group" is v2; "3:cpu,cpuacct:/group" is v1.
double cgroup_quota() {
  std::ifstream file("/proc/self/cgroup");
  double quota = 0;
  for (std::string line; quota == 0 && std::getline(file, line);) {
    const std::vector<std::string> fields = core::split(line, ':');
    if (fields.size() < 3) continue;
    const std::string group = fields[2] == "/" ? "" : fields[2];
    const std::vector<std::string> controllers = core::split(fields[1], ',');
    if (fields[1].empty())
      quota = quota_v2(group);
    else if (std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end())
      quota = quota_v1(group);
  }
  return quota;
}

}  // namespace

Machine this_machine() { return {group_by_core(allowed_cpus()), cgroup_quota()}; }

std::vector<CoreShare> share_cores(const Machine& machine, int ranks, bool bind) {
  const auto count = static_cast<int>(machine.cores.size());
  const bool limited = machine.quota > 0 && machine.quota < count;
  const double usable = limited ? machine.quota : count;
  const int each = static_cast<int>(std::floor(usable / ranks));
  std::vector<CoreShare> shares(static_cast<size_t>(ranks));
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    shares[rank].threads = std::max(each, 1);
    if (!bind || limited || each == 0) continue;
    std::vector<int>& cpus = shares[rank].cpus;
    for (size_t i = 0; i < static_cast<size_t>(each); ++i) {
      const Core& core = machine.cores[rank * static_cast<size_t>(each) + i];
      cpus.insert(cpus.end(), core.begin(), core.end());
    }
    std::sort(cpus.begin(), cpus.end());
  }
  return shares;
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string out;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    out += str(out.empty() ? "" : ",", cpus[i]);
    if (last > i) out += str("-", cpus[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace drivetrain::cli
