// SPDX-License-Identifier: Apache-2.0
// The rank that errors and log lines of the calling thread carry.
#pragma once

#include <string>

namespace drivetrain::core {

// Sets the rank of the calling thread; the first call also sets the one that threads without a
// rank of their own inherit. world_size <= 1 clears it.
void set_rank_label(int rank, int world_size);

// "[rank 3/8] ", or "" in a world of one. Before any call: from RANK and WORLD_SIZE.
std::string rank_label();

}  // namespace drivetrain::core
