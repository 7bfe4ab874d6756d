// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/rank_group.h"

#include <drivetrain/error.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launch/process_tree.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

// waitpid's encoding of what waitid tells.
int wait_status(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return (info.si_status & 0xff) << 8;
  return info.si_status | (info.si_code == CLD_DUMPED ? 0x80 : 0);
}

std::string log_path(const LaunchPlan& plan, const RankPlan& rank, int restart, bool is_error) {
  const std::string attempt = restart == 0 ? "" : str(".restart-", restart);
  return str(plan.options.log_dir, "/rank-", rank.rank, attempt, is_error ? ".err" : ".out");
}

bool is_shown(const LaunchPlan& plan, const RankPlan& rank) {
  const Show show = plan.options.show;
  return show == Show::all || (show == Show::main && rank.local_rank == 0);
}

}  // namespace

ExecErrors::ExecErrors(size_t ranks) : bytes_(ranks * sizeof(int)) {
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("launch", str("cannot map memory: ", std::strerror(errno)));
  errors_ = static_cast<int*>(memory);
}

ExecErrors::~ExecErrors() { ::munmap(errors_, bytes_); }

RankGroup::RankGroup(const LaunchPlan& plan, const SignalSet& signals, Console& console)
    : plan_(plan),
      signals_(signals),
      console_(console),
      exec_errors_(plan.ranks.size()),
      null_(::open("/dev/null", O_RDWR | O_CLOEXEC)) {}

RankStream RankGroup::open_stream(const RankPlan& rank, int restart, bool is_error, Fd* write_end) {
  StreamTarget target;
  target.console = &console_;
  if (is_shown(plan_, rank)) target.sink = is_error ? &console_.error() : &console_.out();
  if (plan_.prefix) target.prefix = str("[", rank.rank, "] ");
  target.may_hold_status = rank.local_rank == 0;
  target.keeps_raw_end = plan_.ranks.size() == 1 && !plan_.prefix;
  LogFile log;
  if (!plan_.options.log_dir.empty()) log = LogFile(log_path(plan_, rank, restart, is_error));
  Channel channel = open_channel(is_error ? STDERR_FILENO : STDOUT_FILENO, target.prefix.size());
  *write_end = std::move(channel.write);
  return {std::move(channel.read), std::move(target), std::move(log)};
}

// A rank is in no terminal's foreground, so that reading from one would stop it.
int RankGroup::standard_input(const RankPlan& rank) const {
  return rank.rank == 0 && ::isatty(STDIN_FILENO) == 0 ? STDIN_FILENO : null_.get();
}

LocalRank RankGroup::start_one(const RankPlan& rank, const ListeningPort& port, int restart) {
  Fd out_end;
  Fd error_end;
  RankStream out = open_stream(rank, restart, false, &out_end);
  RankStream error = open_stream(rank, restart, true, &error_end);
  (void)::unlink(rank.error_file.c_str());  // of an earlier run or attempt
  RankStart start;
  start.program = plan_.program;
  start.arguments = plan_.options.command;
  start.environment = plan_.inherited;
  start.store = rank.rank == 0 ? port.socket.get() : -1;
  Variables variables = start_variables(port.port, restart, start.store);
  variables.insert(variables.end(), rank.variables.begin(), rank.variables.end());
  for (const auto& [name, value] : variables) start.environment.push_back(str(name, "=", value));
  start.cpus = rank.share.cpus;
  start.in = standard_input(rank);
  start.out = out_end.get();
  start.error = error_end.get();
  start.signal_mask = &signals_.original;
  start.open_files = open_files_.before;
  start.exec_error = &exec_errors_[static_cast<size_t>(rank.local_rank)];
  *start.exec_error = 0;
  LocalRank started{start_rank(start), std::move(out), std::move(error), {}};
  started.outcome.rank = rank.rank;
  started.outcome.pid = started.process.pid;
  return started;
}

void RankGroup::start(const ListeningPort& port, int restart) {
  ranks_.clear();
  exits_ = 0;
  for (const RankPlan& rank : plan_.ranks) ranks_.push_back(start_one(rank, port, restart));
}

bool RankGroup::all_exited() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.exited; });
}

bool RankGroup::any_failed() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank.exited && rank.outcome.status != 0; });
}

bool RankGroup::only_blame_peers() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return !rank.exited || rank.outcome.status == 0 ||
           (rank.outcome.error && rank.outcome.error->blames_peer);
  });
}

bool RankGroup::note_exit(LocalRank& rank) {
  siginfo_t info{};
  if (rank.exited) return false;
  if (::waitid(P_PID, static_cast<id_t>(rank.process.pid), &info, WEXITED | WNOHANG | WNOWAIT) !=
          0 ||
      info.si_pid == 0)
    return false;
  rank.exited = true;
  rank.outcome.status = wait_status(info);
  rank.outcome.order = exits_++;
  const auto local = static_cast<size_t>(&rank - ranks_.data());
  if (const int error = exec_errors_[local]; error != 0)
    rank.outcome.exec_problem = str(plan_.program, ": ", std::strerror(error));
  rank.outcome.error = read_error_record(plan_.ranks[local].error_file);
  return true;
}

void RankGroup::refresh_exits() {
  for (LocalRank& rank : ranks_) (void)note_exit(rank);
}

void RankGroup::signal_all(int signal) {
  for (const LocalRank& rank : ranks_) {
    const bool reached = ::kill(-rank.process.pid, signal) == 0;
    // A rank can leave its group.
    if (!reached || signal == SIGKILL) ::kill(rank.process.pid, signal);
  }
  for (const pid_t pid : adopted()) ::kill(pid, signal);
}

void RankGroup::begin_end(int signal) {
  refresh_exits();
  for (LocalRank& rank : ranks_) rank.outcome.was_ended = !rank.exited;
  signal_all(signal);
  signal_all(SIGCONT);  // a stopped process takes no signal
}

void RankGroup::kill() {
  refresh_exits();
  for (LocalRank& rank : ranks_)
    if (!rank.exited) rank.outcome.was_ended = rank.outcome.was_killed = true;
  signal_all(SIGKILL);
}

std::vector<pid_t> RankGroup::adopted() {
  std::vector<pid_t> alive;
  for (const pid_t pid : children()) {
    const bool is_rank = std::any_of(ranks_.begin(), ranks_.end(), [pid](const LocalRank& rank) {
      return rank.process.pid == pid;
    });
    if (!is_rank && ::waitpid(pid, nullptr, WNOHANG) == 0) alive.push_back(pid);
  }
  return alive;
}

std::vector<RankOutcome> RankGroup::finish() {
  std::vector<RankOutcome> outcomes;
  for (LocalRank& rank : ranks_) {
    for (RankStream* stream : {&rank.out, &rank.error}) {
      while (stream->is_open() && stream->read_chunk() == RankStream::Read::more) {
      }
      stream->finish();
    }
    (void)::waitpid(rank.process.pid, nullptr, 0);
    rank.outcome.last_lines = rank.error.last_lines();
    outcomes.push_back(rank.outcome);
  }
  ranks_.clear();
  return outcomes;
}

}  // namespace drivetrain::cli
