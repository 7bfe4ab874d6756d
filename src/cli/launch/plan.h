// SPDX-License-Identifier: Apache-2.0
// What each rank of this machine will be started with: options and machine facts, turned into
// environments. No process is started here.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/launch/cores.h"
#include "cli/launch/options.h"

namespace drivetrain::cli {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct RankPlan {
  int rank = 0;
  int local_rank = 0;
  CoreShare share;
  std::string error_file;
  Variables variables;  // all but those that only the start knows (see start_variables)
};

struct LaunchPlan {
  LaunchOptions options;
  std::string program;  // path of the executable
  std::string run_id;
  std::vector<std::string> inherited;  // "NAME=value", without any launcher's variables
  std::vector<RankPlan> ranks;         // those of this machine
  bool prefix = false;                 // mark lines with the rank
};

// `scratch`: the folder for error files. `environment`: as in environ(7).
LaunchPlan make_plan(const LaunchOptions& options, const std::string& program,
                     const Machine& machine, const std::string& scratch,
                     const std::vector<std::string>& environment);

// MASTER_PORT, TORCHELASTIC_RESTART_COUNT and, for the rank that is given a socket (store_fd >= 0),
// DRIVETRAIN_STORE_FD.
Variables start_variables(int port, int restart, int store_fd);

// Is it a variable that some launcher sets to tell ranks apart? Such never reach our ranks.
bool is_launcher_variable(const std::string& name);

// --dry-run.
void print_plan(const LaunchPlan& plan, std::ostream& out);

}  // namespace drivetrain::cli
