// SPDX-License-Identifier: Apache-2.0
#include "cli/env/bounded_run.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launch/fd.h"

namespace drivetrain::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr size_t kMostBytes = size_t{4} << 20;

struct Pipe {
  Fd read, write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  return {Fd(ends[0]), Fd(ends[1])};
}

// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(const std::vector<char*>& arguments, const Pipe& out, const Pipe& err) {
  ::setpgid(0, 0);                     // killed with all that it starts
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // does not outlive a Ctrl-C here
  const rlimit none{};
  ::setrlimit(RLIMIT_CORE, &none);  // a crash is reported, not dumped
  const int input = ::open("/dev/null", O_RDONLY);
  ::dup2(input, STDIN_FILENO);
  ::dup2(out.write.get(), STDOUT_FILENO);
  ::dup2(err.write.get(), STDERR_FILENO);
  ::execv(arguments.front(), arguments.data());
  const char* reason = std::strerror(errno);
  (void)!::write(STDERR_FILENO, reason, std::strlen(reason));
  ::_exit(126);
}

pid_t start(const std::vector<std::string>& command, const Pipe& out, const Pipe& err) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) become(arguments, out, err);
  return pid;
}

// Takes what is there; closes the end that has no writer left.
void read_some(Fd& from, std::string& into) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(from.get(), buffer.data(), buffer.size());
  if (count == 0) from = Fd();
  if (count <= 0) return;
  into.append(buffer.data(), static_cast<size_t>(count));
  if (into.size() > 2 * kMostBytes) into.erase(0, into.size() - kMostBytes);
}

// Waits for output for `wait` at most.
void read_ready(Pipe& out, Pipe& err, Finished& result, std::chrono::milliseconds wait) {
  std::array<pollfd, 2> streams = {pollfd{out.read.get(), POLLIN, 0},
                                   pollfd{err.read.get(), POLLIN, 0}};
  if (::poll(streams.data(), streams.size(), static_cast<int>(wait.count())) <= 0) return;
  if (streams[0].revents != 0) read_some(out.read, result.out);
  if (streams[1].revents != 0) read_some(err.read, result.err);
}

bool reaped(pid_t pid, Finished& result) { return ::waitpid(pid, &result.status, WNOHANG) == pid; }

// A process that hangs in its driver's kernel part cannot be killed: it is not waited for.
void kill_group(pid_t pid, Finished& result) {
  result.timed_out = true;
  (void)::kill(-pid, SIGKILL);
  const auto limit = Clock::now() + 1s;
  while (!reaped(pid, result) && Clock::now() < limit) (void)::poll(nullptr, 0, 5);
}

}  // namespace

Finished run_bounded(const std::vector<std::string>& command, std::chrono::milliseconds limit) {
  Finished result;
  Pipe out = make_pipe(), err = make_pipe();
  const auto begin = Clock::now();
  const pid_t pid = out.read && err.read ? start(command, out, err) : -1;
  if (pid < 0) {
    result.problem = std::strerror(errno);
    return result;
  }
  out.write = Fd();
  err.write = Fd();
  bool ended = false;
  while (!ended && Clock::now() - begin < limit) {
    read_ready(out, err, result, 10ms);
    ended = reaped(pid, result);
  }
  if (!ended) kill_group(pid, result);
  for (size_t before = std::string::npos; before != result.out.size() + result.err.size();) {
    before = result.out.size() + result.err.size();
    read_ready(out, err, result, 0ms);
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

}  // namespace drivetrain::cli
