// SPDX-License-Identifier: Apache-2.0
// epoll with typed tags.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include <sys/epoll.h>

#include "cli/launch/fd.h"

namespace drivetrain::cli {

enum class Source : uint32_t { signal, guard, exit, out, error, sink };

struct Event {
  Source source;
  uint32_t index;  // of the rank
};

class Poller {
 public:
  Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

  void add(int fd, Event tag, uint32_t events = EPOLLIN) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = static_cast<uint64_t>(tag.source) << 32 | tag.index;
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
  void remove(int fd) { (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

  // Events in the order in which they became ready. Blocks for at most `milliseconds`; -1: for
  // ever.
  template <class Handle>
  void wait(int milliseconds, const Handle& handle) {
    std::array<epoll_event, 64> ready;
    const int count =
        ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), milliseconds);
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = ready[static_cast<size_t>(i)].data.u64;
      handle(Event{static_cast<Source>(tag >> 32), static_cast<uint32_t>(tag)});
    }
  }

 private:
  Fd epoll_;
};

}  // namespace drivetrain::cli
