// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/limits.h"

#include <algorithm>
#include <fstream>

namespace drivetrain::cli {
namespace {

constexpr uint64_t kFilesOfARank = 5;
constexpr uint64_t kOwnFiles = 64;
constexpr uint64_t kMost = 1'048'576;

}  // namespace

int most_local_ranks(uint64_t open_files, uint64_t process_ids) {
  const uint64_t by_files = (std::max(open_files, kOwnFiles) - kOwnFiles) / kFilesOfARank;
  return static_cast<int>(std::clamp<uint64_t>(std::min(by_files, process_ids / 2), 1, kMost));
}

int most_local_ranks() {
  rlimit files{};
  rlimit processes{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_NPROC, &processes);
  uint64_t ids = kMost;
  std::ifstream("/proc/sys/kernel/pid_max") >> ids;
  return most_local_ranks(files.rlim_max, std::min<uint64_t>(ids, processes.rlim_max));
}

OpenFiles::OpenFiles() {
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit most{before.rlim_max, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &most);
}

}  // namespace drivetrain::cli
