// SPDX-License-Identifier: Apache-2.0
#include "hardware/facts/system.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/text.h"

namespace drivetrain::hardware {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return core::trim(line);
}

int64_t limit_value(rlim_t value) {
  return value == RLIM_INFINITY ? kUnlimited : static_cast<int64_t>(value);
}

template <class Resource>
Limit limit(Resource resource) {
  rlimit found{};
  if (::getrlimit(resource, &found) != 0) return {};
  return {limit_value(found.rlim_cur), limit_value(found.rlim_max)};
}

std::optional<Space> space_of(const std::string& path) {
  struct statvfs found{};
  if (::statvfs(path.c_str(), &found) != 0) return std::nullopt;
  const auto block = static_cast<int64_t>(found.f_frsize);
  return Space{static_cast<int64_t>(found.f_blocks) * block,
               static_cast<int64_t>(found.f_bavail) * block};
}

std::optional<bool> is_clock_synchronized() {
  timex state{};
  const int status = ::adjtimex(&state);
  if (status < 0) return std::nullopt;
  return status != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
}

void read_names(SystemFacts& facts) {
  utsname names{};
  if (::uname(&names) != 0) return;
  facts.hostname = names.nodename;
  facts.kernel = core::str(names.sysname, " ", names.release);
  facts.architecture = names.machine;
}

}  // namespace

std::string distribution_name(const std::string& root) {
  std::ifstream file(root + "/etc/os-release");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("PRETTY_NAME=")) continue;
    std::string name = line.substr(line.find('=') + 1);
    if (name.size() >= 2 && (name.front() == '"' || name.front() == '\'') &&
        name.back() == name.front())
      name = name.substr(1, name.size() - 2);
    return name;
  }
  return "";
}

int count_cores(const std::string& list) {
  int count = 0;
  for (const std::string& part : core::split(core::trim(list), ',')) {
    if (part.empty()) continue;
    const size_t dash = part.find('-');
    const int first = std::atoi(part.c_str());
    const int last = dash == std::string::npos ? first : std::atoi(part.c_str() + dash + 1);
    count += last - first + 1;
  }
  return count;
}

SystemFacts system_facts(const std::string& root) {
  SystemFacts facts;
  read_names(facts);
  facts.distribution = distribution_name(root);
  facts.processor = cpu_name(root);
  facts.cores = count_cores(first_line(root + "/sys/devices/system/cpu/online"));
  facts.allowed_cores = static_cast<int>(allowed_cores().size());
  if (facts.cores == 0) facts.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  facts.quota = cpu_quota(root);
  facts.machine_memory = proc_bytes("meminfo", "MemTotal", root).value_or(0);
  facts.memory = memory_info(root);
  facts.shm = space_of(root + "/dev/shm");
  facts.open_files = limit(RLIMIT_NOFILE);
  facts.processes = limit(RLIMIT_NPROC);
  facts.locked_memory = limit(RLIMIT_MEMLOCK);
  facts.address_space = limit(RLIMIT_AS);
  std::error_code error;  // not readable: none
  facts.has_infiniband = std::filesystem::exists(root + "/dev/infiniband", error);
  facts.clock_is_synchronized = is_clock_synchronized();
  return facts;
}

}  // namespace drivetrain::hardware
