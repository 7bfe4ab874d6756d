// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/supervisor.h"

#include <drivetrain/error.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include <sys/signalfd.h>
#include <unistd.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;
using namespace std::chrono_literals;

// Where all that failed so far blame a peer, the peer is given this long to end by itself.
constexpr auto kSettleForCulprit = 300ms;
// After a signal, a reader that stands still does not keep the launcher.
constexpr auto kLastFlush = 1s;

}  // namespace

Supervisor::Supervisor(const LaunchPlan& plan, ListeningPort port, const Fd& guard,
                       const SignalSet& signals)
    : plan_(plan),
      guard_(guard),
      group_(plan, signals, console_),
      port_(std::move(port)),
      signals_(::signalfd(-1, &signals.handled, SFD_CLOEXEC | SFD_NONBLOCK)) {
  // Writing to the terminal from outside its foreground group is what we are for.
  ::signal(SIGTTOU, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  poller_.add(signals_.get(), {Source::signal, 0});
  poller_.add(guard.get(), {Source::guard, 0});
}

int Supervisor::run() {
  int code = 0;
  for (int restart = 0;; ++restart) {
    const std::vector<RankOutcome> outcomes = run_attempt(restart);
    const auto first = first_failure(outcomes);
    code = 0;
    const bool stopped = stop_signal_ != 0 || guard_is_gone_;
    if (!first || (stopped && outcomes[*first].was_ended)) break;
    code = conclude(outcomes, *first, restart);
    if (stopped || restart == plan_.options.max_restarts || !outcomes[*first].exec_problem.empty())
      break;
    console_.say(
        str("restarting all ranks (", restart + 1, " of ", plan_.options.max_restarts, ")"));
    if (port_.socket) drop_waiting_connections(port_.socket);
  }
  if (guard_is_gone_) console_.say("the launcher was killed; so were its ranks");
  if (stop_signal_ != 0) console_.say(str("ended by SIG", ::sigabbrev_np(stop_signal_)));
  drain_console();
  return stop_signal_ == 0 ? code : 128 + stop_signal_;
}

std::vector<RankOutcome> Supervisor::run_attempt(int restart) {
  phase_ = Phase::running;
  deadline_.reset();
  settled_longer_ = false;
  group_.start(port_, restart);
  watch_ranks();
  while (!attempt_is_over()) step();
  paused_ = false;
  return group_.finish();
}

void Supervisor::watch_ranks() {
  uint32_t index = 0;
  for (LocalRank& rank : group_.ranks()) {
    poller_.add(rank.process.handle.get(), {Source::exit, index});
    poller_.add(rank.out.source().get(), {Source::out, index});
    poller_.add(rank.error.source().get(), {Source::error, index});
    ++index;
  }
}

int Supervisor::wait_milliseconds() const {
  if (!deadline_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void Supervisor::step() {
  console_.flush();
  apply_backpressure();
  watch_sinks();
  poller_.wait(wait_milliseconds(), [this](Event event) { handle(event); });
  if (deadline_ && Clock::now() >= *deadline_) on_deadline();
}

void Supervisor::handle(Event event) {
  switch (event.source) {
    case Source::signal:
      return on_signal();
    case Source::guard:
      poller_.remove(guard_.get());  // or it would stay ready
      guard_is_gone_ = true;
      return kill();
    case Source::exit:
      return on_exit(group_.ranks()[event.index]);
    case Source::out:
      return on_stream(group_.ranks()[event.index].out);
    case Source::error:
      return on_stream(group_.ranks()[event.index].error);
    case Source::sink:
      return;  // step() flushes
  }
}

void Supervisor::on_exit(LocalRank& rank) {
  poller_.remove(rank.process.handle.get());
  if (group_.note_exit(rank) && rank.outcome.status != 0 && phase_ == Phase::running) settle();
}

void Supervisor::on_stream(RankStream& stream) {
  if (stream.is_open()) (void)stream.read_chunk();  // closing takes it out of epoll
}

void Supervisor::on_signal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      if (phase_ == Phase::killing) group_.signal_all(SIGKILL);
      (void)group_.adopted();  // reaps
    } else if (signal == SIGWINCH) {
      resize_terminals();
    } else {
      on_user_signal(signal);
    }
  }
}

void Supervisor::on_user_signal(int signal) {
  if (signal == SIGTSTP) return group_.signal_all(SIGSTOP);
  if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGCONT) return group_.signal_all(signal);
  const bool again = stop_signal_ != 0;
  if (!again) stop_signal_ = signal;
  if (again || phase_ == Phase::ending) return kill();
  if (phase_ != Phase::killing) begin_end(signal);
}

void Supervisor::settle() {
  phase_ = Phase::settling;
  deadline_ = Clock::now() + plan_.options.monitor_interval;
}

void Supervisor::begin_end(int signal) {
  phase_ = Phase::ending;
  deadline_ = Clock::now() + plan_.options.grace_period;
  group_.begin_end(signal);
}

void Supervisor::kill() {
  phase_ = Phase::killing;
  deadline_.reset();
  group_.kill();
}

void Supervisor::on_deadline() {
  if (phase_ == Phase::ending) return kill();
  if (phase_ != Phase::settling) return;
  const auto more = kSettleForCulprit - plan_.options.monitor_interval;
  if (!settled_longer_ && more > 0ms && group_.only_blame_peers()) {
    settled_longer_ = true;
    deadline_ = Clock::now() + more;
    return;
  }
  begin_end(SIGTERM);
}

// Every rank has exited, and whatever they left running has been ended too.
bool Supervisor::attempt_is_over() {
  if (!group_.all_exited()) return false;
  const size_t left = group_.adopted().size();
  if (left == 0) return true;
  if (phase_ == Phase::running || phase_ == Phase::settling) {
    console_.say(
        str("ending ", left, left == 1 ? " process" : " processes", " that the ranks left behind"));
    begin_end(SIGTERM);
  } else if (phase_ == Phase::killing) {
    group_.signal_all(SIGKILL);
  }
  return false;
}

int Supervisor::conclude(const std::vector<RankOutcome>& outcomes, size_t first, int restart) {
  const int code = exit_code(outcomes[first].status);
  std::string text = failure_text(outcomes, first);
  const std::string& file = plan_.options.error_file;
  if (!file.empty()) {
    const std::string problem = write_error_file(
        file, outcomes, first, {plan_.run_id, plan_.options.command, restart, code});
    text += problem.empty() ? "\n  error file: " + file : "\n  " + problem;
  }
  console_.say(text);
  return code;
}

// Ranks that write faster than our reader reads wait, as they would on a pipe of their own.
void Supervisor::apply_backpressure() {
  if (paused_ == console_.full()) return;
  paused_ = !paused_;
  uint32_t index = 0;
  for (LocalRank& rank : group_.ranks()) {
    for (const auto& [stream, source] :
         {std::pair(&rank.out, Source::out), std::pair(&rank.error, Source::error)}) {
      if (!stream->is_open()) continue;
      if (paused_)
        poller_.remove(stream->source().get());
      else
        poller_.add(stream->source().get(), {source, index});
    }
    ++index;
  }
}

void Supervisor::watch_sinks() {
  for (Sink* sink : {&console_.out(), &console_.error()}) {
    poller_.remove(sink->poll_fd());
    if (!sink->empty()) poller_.add(sink->poll_fd(), {Source::sink, 0}, EPOLLOUT);
  }
}

void Supervisor::resize_terminals() {
  uint32_t index = 0;
  for (LocalRank& rank : group_.ranks()) {
    const size_t width = plan_.prefix ? str("[", plan_.ranks[index++].rank, "] ").size() : 0;
    if (rank.out.is_open()) copy_window_size(STDOUT_FILENO, rank.out.source(), width);
    if (rank.error.is_open()) copy_window_size(STDERR_FILENO, rank.error.source(), width);
  }
}

void Supervisor::drain_console() {
  const auto give_up = [this] { return guard_is_gone_ || stop_signal_ != 0; };
  std::optional<Clock::time_point> last;
  for (console_.flush(); !console_.empty(); console_.flush()) {
    if (give_up() && !last) last = Clock::now() + kLastFlush;
    if (last && Clock::now() >= *last) return;
    deadline_ = last;
    watch_sinks();
    poller_.wait(wait_milliseconds(), [this](Event event) {
      if (event.source != Source::sink) handle(event);
    });
  }
}

}  // namespace drivetrain::cli
