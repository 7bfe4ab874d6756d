// SPDX-License-Identifier: Apache-2.0
// The ranks of this machine in one attempt: their processes, their streams, how each ended.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/launch/guard.h"
#include "cli/launch/limits.h"
#include "cli/launch/output.h"
#include "cli/launch/plan.h"
#include "cli/launch/port.h"
#include "cli/launch/rank_process.h"
#include "cli/launch/report.h"

namespace drivetrain::cli {

// errno of each rank whose program could not be run, written by the rank itself.
class ExecErrors {
 public:
  explicit ExecErrors(size_t ranks);
  ~ExecErrors();
  ExecErrors(const ExecErrors&) = delete;
  ExecErrors& operator=(const ExecErrors&) = delete;
  int& operator[](size_t local_rank) { return errors_[local_rank]; }

 private:
  int* errors_;
  size_t bytes_;
};

struct LocalRank {
  RankProcess process;
  RankStream out;
  RankStream error;
  RankOutcome outcome;
  bool exited = false;
};

class RankGroup {
 public:
  RankGroup(const LaunchPlan& plan, const SignalSet& signals, Console& console);

  // Throws Error if a process, pipe or log file cannot be made; ranks started so far still run.
  void start(const ListeningPort& port, int restart);

  std::span<LocalRank> ranks() { return ranks_; }
  bool all_exited() const;
  bool any_failed() const;
  // All that failed so far say that another rank's failure is the cause.
  bool only_blame_peers() const;

  // Notes how a rank ended, if it has; true the first time. The zombie is kept until reap(), so
  // that nobody else is given its process id or group meanwhile.
  bool note_exit(LocalRank& rank);

  // To every process of every rank that can be reached: process groups, and adopted descendants.
  void signal_all(int signal);
  // The same with SIGTERM or a user's signal, and with SIGKILL: marks who still ran.
  void begin_end(int signal);
  void kill();

  // Descendants whose parent is gone and who still run. Reaps those that do not.
  std::vector<pid_t> adopted();

  // After all have exited: reads the streams to their end and reaps. Returns what to report.
  std::vector<RankOutcome> finish();

 private:
  LocalRank start_one(const RankPlan& rank, const ListeningPort& port, int restart);
  RankStream open_stream(const RankPlan& rank, int restart, bool is_error, Fd* write_end);
  int standard_input(const RankPlan& rank) const;
  void refresh_exits();

  const LaunchPlan& plan_;
  const SignalSet& signals_;
  Console& console_;
  ExecErrors exec_errors_;
  Fd null_;
  const OpenFiles open_files_;
  std::vector<LocalRank> ranks_;
  int exits_ = 0;
};

}  // namespace drivetrain::cli
