// SPDX-License-Identifier: Apache-2.0
// The event loop that looks after the ranks. It sleeps until a rank ends or writes, a signal comes,
// or a deadline is reached; nothing is polled.
//
// An attempt goes through phases:
//   running   until a rank fails, all have ended, or a signal comes
//   settling  after the first failure, for --monitor-interval: others may fail by themselves
//   ending    SIGTERM (or the user's signal) was sent; --grace-period from here to
//   killing   SIGKILL was sent, and is sent again to whatever turns up
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "cli/launch/console.h"
#include "cli/launch/guard.h"
#include "cli/launch/plan.h"
#include "cli/launch/poller.h"
#include "cli/launch/port.h"
#include "cli/launch/rank_group.h"

namespace drivetrain::cli {

class Supervisor {
 public:
  // `port`: what rank 0 is handed; without a socket where rank 0 is on another machine.
  Supervisor(const LaunchPlan& plan, ListeningPort port, const Fd& guard, const SignalSet& signals);

  // Runs all attempts; returns the launcher's exit code. Nothing that was started is left then.
  // Blocks.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { running, settling, ending, killing };

  std::vector<RankOutcome> run_attempt(int restart);
  void watch_ranks();
  void step();
  void handle(Event event);

  void on_exit(LocalRank& rank);
  void on_stream(RankStream& stream);
  void on_signal();
  void on_user_signal(int signal);
  void on_deadline();
  bool attempt_is_over();

  void settle();
  void begin_end(int signal);
  void kill();

  int conclude(const std::vector<RankOutcome>& outcomes, size_t first, int restart);
  void apply_backpressure();
  void watch_sinks();
  void resize_terminals();
  void drain_console();
  int wait_milliseconds() const;

  const LaunchPlan& plan_;
  const Fd& guard_;
  Console console_;
  RankGroup group_;
  ListeningPort port_;
  Fd signals_;
  Poller poller_;
  Phase phase_ = Phase::running;
  std::optional<Clock::time_point> deadline_;
  bool settled_longer_ = false;
  int stop_signal_ = 0;
  bool guard_is_gone_ = false;
  bool paused_ = false;
};

}  // namespace drivetrain::cli
