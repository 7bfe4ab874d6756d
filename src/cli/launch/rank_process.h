// SPDX-License-Identifier: Apache-2.0
// Starts the process of one rank.
#pragma once

#include <string>
#include <vector>

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "cli/launch/fd.h"

namespace drivetrain::cli {

struct RankStart {
  std::string program;                 // path
  std::vector<std::string> arguments;  // the first is the program's name
  std::vector<std::string> environment;
  std::vector<int> cpus;              // empty: as the launcher
  int in = -1, out = -1, error = -1;  // its standard streams
  int store = -1;                     // a socket to inherit under the same number, or -1
  const sigset_t* signal_mask = nullptr;
  rlimit open_files{};        // what the rank may open
  int* exec_error = nullptr;  // shared memory: errno where the program could not be run
};

struct RankProcess {
  pid_t pid = 0;  // also its process group
  Fd handle;      // pidfd: readable once the process has ended
};

// The process leads a group of its own, dies by SIGKILL when the calling thread does, and inherits
// no descriptor made by the launcher but those named. Throws Error if no process can be made.
RankProcess start_rank(const RankStart& start);

}  // namespace drivetrain::cli
