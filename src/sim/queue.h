// SPDX-License-Identifier: Apache-2.0
// A stream: work that one thread does in order, and moments in it that others wait for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace drivetrain::sim {

using Clock = std::chrono::steady_clock;

// Reached when all that its stream had been given before is done.
class Moment {
 public:
  void reach();
  bool reached() const;
  void wait() const;  // **Blocks.**
  // Requires: reached.
  Clock::time_point time() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Clock::time_point> time_;
};

// What a device's streams share: how long it was busy, and which of them go first.
class Activity {
 public:
  // Around a kernel. One of an ordinary stream begins once no urgent one runs.
  void begin(bool urgent);
  void end(bool urgent);
  // Time with at least one kernel running, since the process began.
  Clock::duration busy() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable calm_;
  int running_ = 0, urgent_ = 0;
  Clock::time_point since_;
  Clock::duration busy_{0};
};

class Queue {
 public:
  // `name` is for messages: "sim:0, stream 3".
  Queue(std::string name, Activity& activity, bool urgent);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Returns at once. **Throws** what an earlier kernel here failed with.
  void enqueue(std::string kernel, std::function<void()> work);
  // **Blocks.** until `work` is done, after all before it; throws what it throws.
  void run(std::string kernel, std::function<void()> work);
  std::shared_ptr<const Moment> mark();
  // What is enqueued from now on begins once `moment` is reached.
  void await(std::shared_ptr<const Moment> moment);

  bool idle() const;
  // **Blocks.** until all given so far is done.
  void drain();
  // drain(), then **throws** what a kernel failed with.
  void synchronize();
  // Throws what a kernel failed with, once.
  void rethrow();

  // Called by a kernel: sleeps, but not past the end of the process.
  void nap_until(Clock::time_point end);
  // At the end of the process: what is not begun is dropped, and moments in it count as reached.
  void stop();
  void join();

 private:
  struct Task {
    std::string kernel;  // empty: no kernel, but a mark or a wait
    std::function<void()> work;
    std::shared_ptr<Moment> moment;       // to be reached after it
    std::shared_ptr<const Moment> cause;  // to be waited for before
  };

  void push(Task task);
  void serve();
  void perform(Task& task);
  void fail(const std::string& kernel, const std::string& reason);

  const std::string name_;
  Activity& activity_;
  const bool urgent_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  int64_t pending_ = 0;  // tasks that are not done
  bool stopping_ = false;
  std::string failure_;
  std::thread thread_;  // started by the first task
};

}  // namespace drivetrain::sim
