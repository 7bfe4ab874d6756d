// SPDX-License-Identifier: Apache-2.0
// Runs a program that may crash or hang, and comes back in any case.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace drivetrain::cli {

struct Finished {
  std::string problem;     // it could not be started: why; then nothing else is set
  bool timed_out = false;  // it was killed at the limit, or left to itself where even that fails
  int status = 0;          // as waitpid(2) gives it
  std::string out, err;    // what it wrote; of very long output the end
  double seconds = 0;
};

// Standard input is empty. **Blocks.** for `limit` and a second at most.
Finished run_bounded(const std::vector<std::string>& command, std::chrono::milliseconds limit);

}  // namespace drivetrain::cli
