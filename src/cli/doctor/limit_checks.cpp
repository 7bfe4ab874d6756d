// SPDX-License-Identifier: Apache-2.0
// What this machine, its containers and its limits leave to the ranks.
#include <algorithm>
#include <cstdlib>

#include "cli/doctor/checks.h"
#include "core/sizes.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::format_bytes;
using core::str;
using hardware::kUnlimited;

constexpr int64_t kMiB = int64_t{1} << 20;
// A LibTorch process without a model holds about 200 MiB; a device's runtime as much again.
constexpr int64_t kMemoryOfRank = 256 * kMiB;
constexpr int64_t kRoomOfRank = 1024 * kMiB;
// Communication libraries put a few MiB a connection into /dev/shm; containers begin with 64 MiB.
constexpr int64_t kSharedOfRank = 64 * kMiB;
// A rank holds a socket to each other rank and to the store, files of its data set, and pipes to
// the launcher.
constexpr int64_t kFilesOfProcess = 256;
constexpr int64_t kFilesOfRank = 8;
constexpr int64_t kUsualFiles = 1024;

bool has_accelerator(const Case& patient) {
  const auto& drivers = patient.facts.drivers;
  return std::any_of(drivers.begin(), drivers.end(),
                     [](const hardware::DriverFound& driver) { return driver.computing > 0; });
}

int64_t threads_wanted(const Case& patient) {
  const auto found = patient.facts.environment.find("OMP_NUM_THREADS");
  return found == patient.facts.environment.end() ? 0 : std::atoll(found->second.c_str());
}

bool is_below(int64_t limit, int64_t needed) { return limit != kUnlimited && limit < needed; }

std::string limit_text(int64_t limit) {
  return limit == kUnlimited ? "unlimited" : std::to_string(limit);
}

}  // namespace

void check_cores(const Case& patient, Findings& findings) {
  const auto& system = patient.facts.system;
  const int usable = system.usable_cores();
  const bool is_short = usable < patient.ranks;
  std::string found =
      str(usable, " cores for ", patient.ranks, patient.ranks == 1 ? " rank" : " ranks");
  if (usable < system.cores) found += str(" (the machine has ", system.cores, ")");
  const bool by_quota = system.quota && *system.quota < system.allowed_cores;
  std::string advice = "start fewer ranks";
  if (by_quota)
    advice = "raise the container's CPU limit, or start fewer ranks";
  else if (usable < system.cores)
    advice += ", or widen the affinity mask (taskset, the batch system's cores per task)";
  findings.push_back(
      {"cores", is_short ? Level::warning : Level::ok, found, is_short ? advice : ""});
}

void check_threads(const Case& patient, Findings& findings) {
  const int64_t threads = threads_wanted(patient);
  const int usable = patient.facts.system.usable_cores();
  if (threads <= 0 || threads * patient.ranks <= usable) return;
  findings.push_back({"threads", Level::warning,
                      str("OMP_NUM_THREADS is ", threads, ": ", threads * patient.ranks,
                          " threads on ", usable, " cores"),
                      "unset it: drivetrain launch then shares the cores out"});
}

void check_memory(const Case& patient, Findings& findings) {
  const auto& system = patient.facts.system;
  const int64_t available = system.memory.available;
  const int64_t each = available / patient.ranks;
  const Level level = each < kMemoryOfRank ? Level::problem
                      : each < kRoomOfRank ? Level::warning
                                           : Level::ok;
  std::string found =
      str(format_bytes(available), " available of ", format_bytes(system.memory.total));
  if (system.memory.total < system.machine_memory)
    found += str(" that a control group allows (the machine has ",
                 format_bytes(system.machine_memory), ")");
  if (level != Level::ok) found += str(": ", format_bytes(each), " a rank");
  findings.push_back(
      {"memory", level, found,
       level == Level::ok ? "" : "raise the container's memory limit, or start fewer ranks"});
}

void check_shared_memory(const Case& patient, Findings& findings) {
  const auto& shm = patient.facts.system.shm;
  const bool is_needed = patient.ranks > 1 && has_accelerator(patient);
  const int64_t needed = kSharedOfRank * patient.ranks;
  const int64_t available = shm ? shm->available : 0;
  const bool is_short = available < needed;
  const Level level = !is_short ? Level::ok : is_needed ? Level::problem : Level::warning;
  const std::string found =
      shm ? str("/dev/shm has ", format_bytes(available), " free of ", format_bytes(shm->total))
          : "there is no /dev/shm";
  findings.push_back(
      {"shared memory", level,
       is_short ? str(found, "; ", patient.ranks, " ranks may need ", format_bytes(needed)) : found,
       is_short ? "give the container --shm-size=1g or more, or --ipc=host; remove "
                  "what old processes left there"
                : ""});
}

void check_open_files(const Case& patient, Findings& findings) {
  const auto& limit = patient.facts.system.open_files;
  const int64_t world = std::max(patient.ranks, patient.facts.process.world_size);
  const int64_t needed = kFilesOfProcess + kFilesOfRank * world;
  const Level level = is_below(limit.soft, needed)        ? Level::problem
                      : is_below(limit.soft, kUsualFiles) ? Level::warning
                                                          : Level::ok;
  const int64_t wanted = std::max(needed, 4 * kUsualFiles);
  const std::string raise = is_below(limit.hard, wanted)
                                ? "raise the hard limit (limits.conf, LimitNOFILE, --ulimit nofile)"
                                : str("ulimit -n ", wanted);
  findings.push_back({"open files", level,
                      str("limit ", limit_text(limit.soft), " (hard ", limit_text(limit.hard), ")",
                          level == Level::ok ? "" : str("; ", world, " ranks may need ", needed)),
                      level == Level::ok ? "" : raise});
}

void check_processes(const Case& patient, Findings& findings) {
  const auto& limit = patient.facts.system.processes;
  // Threads count: LibTorch's pools, the loaders' workers, communication.
  const int64_t each = 2 * static_cast<int64_t>(patient.facts.system.usable_cores()) + 32;
  const int64_t needed = each * patient.ranks;
  const bool is_short = is_below(limit.soft, needed);
  findings.push_back(
      {"processes", is_short ? Level::warning : Level::ok,
       str("limit ", limit_text(limit.soft),
           is_short ? str("; the threads of ", patient.ranks, " ranks may need ", needed) : ""),
       is_short ? str("ulimit -u ", needed * 2) : ""});
}

void check_memory_limits(const Case& patient, Findings& findings) {
  const auto& system = patient.facts.system;
  if (system.address_space.soft != kUnlimited)
    findings.push_back({"address space", has_accelerator(patient) ? Level::problem : Level::warning,
                        str("limited to ", format_bytes(system.address_space.soft),
                            ": device runtimes and mapped files reserve far more than they use"),
                        "ulimit -v unlimited"});
  if (system.has_infiniband && is_below(system.locked_memory.soft, 1024 * kMiB))
    findings.push_back({"locked memory", Level::problem,
                        str("limited to ", format_bytes(system.locked_memory.soft),
                            ", but InfiniBand's buffers are locked memory"),
                        "ulimit -l unlimited (containers: --ulimit memlock=-1)"});
}

}  // namespace drivetrain::cli
