// SPDX-License-Identifier: Apache-2.0
// The calling process's children, and signals to them. A process that is a subreaper becomes the
// parent of every descendant whose own parent died, so none can leave its tree.
#pragma once

#include <vector>

#include <sys/types.h>

namespace drivetrain::cli {

// Throws Error if the kernel refuses (older than Linux 3.4).
void become_subreaper();

// Children of the calling thread, zombies included.
std::vector<pid_t> children();

// SIGKILLs children, adopted ones too, until none is left. Blocks. All of them are reaped.
void kill_all_children();

}  // namespace drivetrain::cli
