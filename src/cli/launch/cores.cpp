// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <utility>

#include "core/text.h"
#include "hardware/cpu_facts.h"

namespace drivetrain::cli {
namespace {

using core::str;

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

}  // namespace

Machine this_machine() {
  return {group_by_core(hardware::allowed_cores()), hardware::cpu_quota().value_or(0)};
}

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
