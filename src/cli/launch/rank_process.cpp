// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/rank_process.h"

#include <drivetrain/error.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

// The mask is as wide as the highest CPU needs.
class CpuSet {
 public:
  explicit CpuSet(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    words_.resize(static_cast<size_t>(cpus.back()) / kBits + 1);
    for (const int cpu : cpus)
      words_[static_cast<size_t>(cpu) / kBits] |= 1UL << (static_cast<size_t>(cpu) % kBits);
  }
  void apply() const {
    if (words_.empty()) return;
    (void)::sched_setaffinity(0, words_.size() * sizeof(unsigned long),
                              reinterpret_cast<const cpu_set_t*>(words_.data()));
  }

 private:
  static constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> words_;
};

// Between fork and exec: system calls only.
[[noreturn]] void become_rank(const RankStart& start, pid_t launcher, const CpuSet& cpus,
                              char** arguments, char** environment) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::getppid() != launcher) ::_exit(128 + SIGKILL);  // it died before the line above
  cpus.apply();
  ::dup2(start.in, STDIN_FILENO);
  ::dup2(start.out, STDOUT_FILENO);
  ::dup2(start.error, STDERR_FILENO);
  if (start.store >= 0) ::fcntl(start.store, F_SETFD, 0);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGTTOU, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, start.signal_mask, nullptr);
  ::setrlimit(RLIMIT_NOFILE, &start.open_files);
  ::execve(start.program.c_str(), arguments, environment);
  *start.exec_error = errno;
  ::_exit(errno == ENOENT ? 127 : 126);
}

}  // namespace

RankProcess start_rank(const RankStart& start) {
  std::vector<char*> arguments = pointers(start.arguments);
  std::vector<char*> environment = pointers(start.environment);
  const CpuSet cpus(start.cpus);
  const pid_t launcher = ::getpid();
  RankProcess process;
  process.pid = ::fork();
  if (process.pid == 0) become_rank(start, launcher, cpus, arguments.data(), environment.data());
  if (process.pid < 0)
    throw Error("launch", core::str("cannot make a process: ", std::strerror(errno),
                                    "; allowed: what ulimit -u and the cgroup's pids.max leave"));
  ::setpgid(process.pid, process.pid);  // here too: whoever comes first
  process.handle = Fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!process.handle)
    throw Error("launch", core::str("cannot watch process ", process.pid, ": ",
                                    std::strerror(errno), "; allowed: Linux 5.3 or newer"));
  return process;
}

}  // namespace drivetrain::cli
