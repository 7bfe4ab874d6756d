// SPDX-License-Identifier: Apache-2.0
// Two processes look after the ranks, so that neither's death, SIGKILL included, leaves orphans.
//
//   guard (the process that the user started)
//     supervisor (its child; starts the ranks, passes their output on)
//       rank 0, rank 1, ... (each with its own process group)
//
// Both are subreapers. If the guard dies, the supervisor sees the end of a pipe and kills the
// ranks and all that they started; if the supervisor dies, all of those become the guard's
// children, and the guard kills them. If both die at once, each rank still gets SIGKILL from the
// kernel (PR_SET_PDEATHSIG).
#pragma once

#include <csignal>
#include <functional>

#include "cli/launch/fd.h"

namespace drivetrain::cli {

// Signals that end a launch or are passed on to the ranks, and those that the loops wait for. All
// are blocked in guard and supervisor. One that was ignored when the launcher started (nohup) is
// left out.
struct SignalSet {
  sigset_t handled{};   // blocked and waited for
  sigset_t original{};  // the mask to give back to the ranks
};

// What runs in the supervisor: returns the exit code. `guard` ends (EOF) when the guard dies.
using Supervise = std::function<int(const Fd& guard, const SignalSet& signals)>;

// Runs `supervise` in a child and returns its exit code once nothing is left of it. Signals that
// reach the guard are passed on to it. Blocks.
int run_guarded(const Supervise& supervise);

}  // namespace drivetrain::cli
