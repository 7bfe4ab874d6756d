// SPDX-License-Identifier: Apache-2.0
// Collectives on tensors that are still on their way from a device to the host.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/transport.h"

namespace drivetrain::comm {

// A thread that starts them in the order in which they were called, so that the caller can go on
// giving work to the device. The thread begins with the first.
class Courier {
 public:
  Courier() = default;
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // `ready` blocks until the tensors are there, then `start` is called; either may throw, which
  // the result's wait_for does then.
  Transport::Started start_after(std::function<void()> ready,
                                 std::function<Transport::Started()> start);

  // True once all that was handed over has been started, false after `limit`.
  bool is_idle_within(Milliseconds limit);

  // Ends the thread; what it has not started ends with an error. Blocks until all that was handed
  // over is ready.
  void stop();

 private:
  struct Parcel;
  class Delivery;

  void run();
  void refuse_if_stopping();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Parcel>> queue_;  // The first is being started.
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace drivetrain::comm
