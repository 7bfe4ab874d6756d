// SPDX-License-Identifier: Apache-2.0
// A peer's death must be an error, not a signal that ends this process without a word.
#pragma once

#include <csignal>
#include <ctime>

namespace drivetrain::comm {

// Blocks SIGPIPE on this thread and on those started in its scope: Gloo and the store's server
// write to sockets without MSG_NOSIGNAL, and get EPIPE then. The program's own threads and its
// choice of a handler stay as they are.
class SigpipeBlocked {
 public:
  SigpipeBlocked() { ::pthread_sigmask(SIG_BLOCK, &sigpipe(), &previous_); }
  ~SigpipeBlocked() {
    const timespec no_time{};
    if (::sigismember(&previous_, SIGPIPE) == 0) {
      while (::sigtimedwait(&sigpipe(), nullptr, &no_time) == SIGPIPE) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  static const sigset_t& sigpipe() {
    static const sigset_t set = [] {
      sigset_t one;
      ::sigemptyset(&one);
      ::sigaddset(&one, SIGPIPE);
      return one;
    }();
    return set;
  }

  sigset_t previous_{};
};

}  // namespace drivetrain::comm
