// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/guard.h"

#include <drivetrain/error.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launch/process_tree.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

bool is_ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

SignalSet block_signals() {
  SignalSet set;
  // With SIGCHLD ignored the kernel would reap our children behind our back.
  ::signal(SIGCHLD, SIG_DFL);
  ::sigemptyset(&set.handled);
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH, SIGCHLD})
    if (!is_ignored(signal)) ::sigaddset(&set.handled, signal);
  ::sigprocmask(SIG_BLOCK, &set.handled, &set.original);
  return set;
}

// Ctrl-Z: the supervisor stops the ranks, and this process stops as the shell expects.
void stop_with_ranks(pid_t supervisor) {
  ::kill(supervisor, SIGTSTP);
  ::raise(SIGSTOP);
  ::kill(supervisor, SIGCONT);
}

std::optional<int> status_if_ended(pid_t supervisor) {
  int status = 0;
  // Others that end here were adopted; they need no more than reaping.
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (pid == supervisor) return status;
  return std::nullopt;
}

int watch(pid_t supervisor, const sigset_t& handled) {
  while (true) {
    const int signal = ::sigwaitinfo(&handled, nullptr);
    if (signal == SIGCHLD) {
      if (const auto status = status_if_ended(supervisor)) return *status;
    } else if (signal == SIGTSTP) {
      stop_with_ranks(supervisor);
    } else if (signal > 0 && signal != SIGCONT) {
      ::kill(supervisor, signal);
    }
  }
}

int supervise_in_child(const Supervise& supervise, Fd guard, const SignalSet& signals) {
  try {
    become_subreaper();
    return supervise(guard, signals);
  } catch (const Error& error) {
    std::cerr << "drivetrain: " << error.what_happened() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "drivetrain: " << error.what() << "\n";
  }
  kill_all_children();
  return 1;
}

}  // namespace

int run_guarded(const Supervise& supervise) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error("launch", str("cannot make a pipe: ", std::strerror(errno)));
  Fd guard(ends[0]);
  Fd alive(ends[1]);
  become_subreaper();
  const SignalSet signals = block_signals();
  const pid_t supervisor = ::fork();
  if (supervisor < 0) throw Error("launch", str("cannot fork: ", std::strerror(errno)));
  if (supervisor == 0) {
    // Out of the terminal's foreground group: a Ctrl-C arrives once, by way of the guard.
    ::setpgid(0, 0);
    alive.reset();
    const int code = supervise_in_child(supervise, std::move(guard), signals);
    std::cout.flush();
    ::_exit(code);
  }
  guard.reset();
  const int status = watch(supervisor, signals.handled);
  kill_all_children();
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::cerr << "drivetrain: the launcher's supervisor was ended by signal " << WTERMSIG(status)
            << "; the ranks were killed\n";
  return 128 + WTERMSIG(status);
}

}  // namespace drivetrain::cli
