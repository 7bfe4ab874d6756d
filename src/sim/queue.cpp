// SPDX-License-Identifier: Apache-2.0
#include "sim/queue.h"

#include <c10/util/Exception.h>

#include <utility>

#include "core/text.h"
#include "sim/kernel_thread.h"

namespace drivetrain::sim {

// --- Moment

void Moment::reach() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    time_ = Clock::now();
  }
  changed_.notify_all();
}

bool Moment::reached() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return time_.has_value();
}

void Moment::wait() const {
  refuse_in_child("waiting");
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return time_.has_value(); });
}

Clock::time_point Moment::time() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return *time_;
}

// --- Activity

void Activity::begin(bool urgent) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!urgent) calm_.wait(lock, [this] { return urgent_ == 0; });
  if (running_++ == 0) since_ = Clock::now();
  urgent_ += urgent ? 1 : 0;
}

void Activity::end(bool urgent) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--running_ == 0) busy_ += Clock::now() - since_;
    urgent_ -= urgent ? 1 : 0;
  }
  if (urgent) calm_.notify_all();
}

Clock::duration Activity::busy() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return running_ > 0 ? busy_ + (Clock::now() - since_) : busy_;
}

// --- Queue

Queue::Queue(std::string name, Activity& activity, bool urgent)
    : name_(std::move(name)), activity_(activity), urgent_(urgent) {}

void Queue::enqueue(std::string kernel, std::function<void()> work) {
  rethrow();
  push({std::move(kernel), std::move(work), nullptr, nullptr});
}

void Queue::run(std::string kernel, std::function<void()> work) {
  rethrow();
  std::exception_ptr thrown;
  bool ran = false;
  auto done = std::make_shared<Moment>();
  push({std::move(kernel),
        [&ran, &thrown, work = std::move(work)] {
          ran = true;
          try {
            work();
          } catch (...) {
            thrown = std::current_exception();
          }
        },
        done, nullptr});
  done->wait();
  rethrow();
  TORCH_CHECK(ran, name_, ": no work is done any more, the process is ending");
  if (thrown) std::rethrow_exception(thrown);
}

std::shared_ptr<const Moment> Queue::mark() {
  auto moment = std::make_shared<Moment>();
  push({"", nullptr, moment, nullptr});
  return moment;
}

void Queue::await(std::shared_ptr<const Moment> moment) {
  if (!moment->reached()) push({"", nullptr, nullptr, std::move(moment)});
}

bool Queue::idle() const {
  refuse_in_child("a query");
  const std::lock_guard<std::mutex> lock(mutex_);
  return pending_ == 0;
}

void Queue::drain() {
  if (!idle()) mark()->wait();
}

void Queue::synchronize() {
  drain();
  rethrow();
}

void Queue::rethrow() {
  refuse_in_child("work");
  std::string failure;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure.swap(failure_);
  }
  TORCH_CHECK(failure.empty(), failure);
}

void Queue::fail(const std::string& kernel, const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty())
    failure_ = core::str(name_, ": ", kernel, ", started earlier, failed: ", reason);
}

void Queue::push(Task task) {
  refuse_in_child("work");
  const std::lock_guard<std::mutex> lock(mutex_);
  // A mark with nothing before it, or at the end of the process.
  const bool at_once = stopping_ || (pending_ == 0 && task.moment && !task.work);
  if (at_once) {
    if (task.moment) task.moment->reach();
    return;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  ++pending_;
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void Queue::serve() {
  enter_kernel_thread();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    const bool drop = stopping_;
    lock.unlock();
    if (!drop) perform(task);
    task.work = nullptr;  // what it holds is free before anyone is told
    lock.lock();
    --pending_;
    if (task.moment) task.moment->reach();
  }
}

void Queue::perform(Task& task) {
  if (task.cause) task.cause->wait();
  if (!task.work) return;
  activity_.begin(urgent_);
  try {
    task.work();
  } catch (const c10::Error& error) {
    fail(task.kernel, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(task.kernel, error.what());
  }
  activity_.end(urgent_);
}

void Queue::nap_until(Clock::time_point end) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, end, [this] { return stopping_; });
}

void Queue::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void Queue::join() {
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

}  // namespace drivetrain::sim
