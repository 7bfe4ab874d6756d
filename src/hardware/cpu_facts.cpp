// SPDX-License-Identifier: Apache-2.0
#include "hardware/cpu_facts.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/text.h"

namespace drivetrain::hardware {

using core::split;
using core::trim;

namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return trim(line);
}

// A number in a file of its own; "max" and unreadable files give none.
std::optional<int64_t> number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

// The value of "key value" lines.
int64_t keyed_number(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value)
    if (name == key) return value;
  return 0;
}

// What follows the colon of the first line of /proc/cpuinfo that starts with `field`.
std::optional<std::string> cpuinfo(const std::string& root, const std::string& field) {
  std::ifstream file(root + "/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && trim(line.substr(0, colon)) == field)
      return trim(line.substr(colon + 1));
  }
  return std::nullopt;
}

struct Groups {
  std::vector<std::string> v1;  // directories, innermost first
  std::vector<std::string> v2;
};

// A container often sees its group's files at the mount's own root although /proc names a path
// outside; so every directory from the named one up to the mount is looked at.
std::vector<std::string> upwards(const std::string& mount, std::string path) {
  std::vector<std::string> directories;
  while (!path.empty() && path != "/") {
    directories.push_back(mount + path);
    path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  directories.push_back(mount);
  return directories;
}

// The groups of `controller` ("memory", "cpu") around this process.
Groups groups(const std::string& root, const std::string& controller) {
  Groups found;
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    const std::vector<std::string> controllers = split(names, ',');
    if (names.empty())
      found.v2 = upwards(mount, path);
    else if (std::count(controllers.begin(), controllers.end(), controller) > 0)
      found.v1 = upwards(core::str(mount, "/", controller), path);
  }
  return found;
}

// Cuts `info` by one group: its limit, what is used of it, and the cache in it that can be dropped.
void cut(MemoryInfo& info, std::optional<int64_t> limit, std::optional<int64_t> used,
         int64_t droppable) {
  if (!limit || *limit <= 0) return;
  info.total = std::min(info.total, *limit);
  const int64_t in_use = std::max<int64_t>(used.value_or(0) - droppable, 0);
  info.available = std::clamp<int64_t>(*limit - in_use, 0, info.available);
}

}  // namespace

std::optional<int64_t> proc_bytes(const std::string& file, const std::string& field,
                                  const std::string& root) {
  std::ifstream lines(root + "/proc/" + file);
  std::string line;
  while (std::getline(lines, line))
    if (line.compare(0, field.size() + 1, field + ":") == 0) {
      int64_t kib = 0;
      std::istringstream(line.substr(field.size() + 1)) >> kib;
      return kib * 1024;
    }
  return std::nullopt;
}

MemoryInfo memory_info(const std::string& root) {
  MemoryInfo info;
  info.total = proc_bytes("meminfo", "MemTotal", root).value_or(0);
  info.available = proc_bytes("meminfo", "MemAvailable", root)
                       .value_or(proc_bytes("meminfo", "MemFree", root).value_or(0));
  const Groups around = groups(root, "memory");
  for (const std::string& group : around.v2)
    cut(info, number(group + "/memory.max"), number(group + "/memory.current"),
        keyed_number(group + "/memory.stat", "inactive_file"));
  for (const std::string& group : around.v1)
    cut(info, number(group + "/memory.limit_in_bytes"), number(group + "/memory.usage_in_bytes"),
        keyed_number(group + "/memory.stat", "total_inactive_file"));
  return info;
}

std::optional<double> cpu_quota(const std::string& root) {
  double tightest = std::numeric_limits<double>::infinity();
  const auto add = [&tightest](std::optional<int64_t> quota, std::optional<int64_t> period) {
    if (quota && period && *quota > 0 && *period > 0)
      tightest = std::min(tightest, static_cast<double>(*quota) / static_cast<double>(*period));
  };
  const Groups around = groups(root, "cpu");
  for (const std::string& group : around.v2) {
    std::istringstream line(first_line(group + "/cpu.max").value_or("max"));
    int64_t quota = 0, period = 0;
    if (line >> quota >> period) add(quota, period);
  }
  for (const std::string& group : around.v1)
    add(number(group + "/cpu.cfs_quota_us"), number(group + "/cpu.cfs_period_us"));
  if (std::isinf(tightest)) return std::nullopt;
  return tightest;
}

int usable_cores(int affinity, std::optional<double> quota) {
  const int by_quota = quota ? static_cast<int>(std::min(*quota, 1e6)) : affinity;
  return std::max(std::min(affinity, by_quota), 1);
}

std::vector<int> allowed_cores() {
  // Machines may have more cores than a cpu_set_t holds: ask for ever larger sets.
  for (int capacity = CPU_SETSIZE; capacity <= (1 << 20); capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    const size_t size = CPU_ALLOC_SIZE(capacity);
    const bool filled = sched_getaffinity(0, size, set) == 0;
    std::vector<int> cores;
    for (int core = 0; filled && core < capacity; ++core)
      if (CPU_ISSET_S(core, size, set)) cores.push_back(core);
    CPU_FREE(set);
    if (filled) return cores;
  }
  return {0};
}

CpuTimes cpu_times(const std::vector<int>& cores, const std::string& root) {
  CpuTimes times;
  std::ifstream file(root + "/proc/stat");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 3, "cpu") != 0 || line.size() < 4 || line[3] == ' ') continue;
    std::istringstream fields(line.substr(3));
    int core = 0;
    // user nice system idle iowait irq softirq steal; guest times are part of user and nice
    std::array<int64_t, 8> ticks{};
    fields >> core;
    for (int64_t& tick : ticks) fields >> tick;
    if (std::find(cores.begin(), cores.end(), core) == cores.end()) continue;
    const int64_t idle = ticks[3] + ticks[4];
    for (const int64_t tick : ticks) times.total += tick;
    times.busy -= idle;
  }
  times.busy += times.total;
  return times;
}

std::string cpu_name(const std::string& root) {
  for (const char* field : {"model name", "Model", "Hardware", "cpu model", "cpu"})
    if (const auto name = cpuinfo(root, field); name && !name->empty()) return *name;
  utsname machine{};
  uname(&machine);
  return machine.machine;
}

std::vector<std::string> cpu_features(const std::string& root) {
  for (const char* field : {"flags", "Features"})
    if (const auto flags = cpuinfo(root, field)) return split(*flags, ' ');
  return {};
}

bool reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

}  // namespace drivetrain::hardware
