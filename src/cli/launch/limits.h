// SPDX-License-Identifier: Apache-2.0
// How many ranks one machine can run.
#pragma once

#include <cstdint>

#include <sys/resource.h>

namespace drivetrain::cli {

// The launcher holds five descriptors a rank: two streams, their logs, and the process itself.
int most_local_ranks(uint64_t open_files, uint64_t process_ids);

// As above, by this machine's limits.
int most_local_ranks();

// Lets the launcher open as many files as it may; `before` is what its ranks should have.
struct OpenFiles {
  OpenFiles();
  rlimit before{};
};

}  // namespace drivetrain::cli
