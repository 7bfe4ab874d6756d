// SPDX-License-Identifier: Apache-2.0
#include "comm/courier.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

namespace drivetrain::comm {

struct Courier::Parcel {
  std::function<void()> ready;
  std::function<Transport::Started()> start;

  std::mutex mutex;
  std::condition_variable changed;
  bool is_started = false;
  Transport::Started work;  // One of the two, once it is started.
  std::exception_ptr error;

  void deliver(Transport::Started started, std::exception_ptr failed) {
    std::lock_guard lock(mutex);
    work = std::move(started);
    error = std::move(failed);
    is_started = true;
    changed.notify_all();
  }
};

class Courier::Delivery : public Work {
 public:
  explicit Delivery(std::shared_ptr<Parcel> parcel) : parcel_(std::move(parcel)) {}

  bool wait_for(Milliseconds time) override {
    const auto deadline = Clock::now() + time;
    {
      std::unique_lock lock(parcel_->mutex);
      if (!parcel_->changed.wait_until(lock, deadline, [this] { return parcel_->is_started; }))
        return false;
    }
    if (parcel_->error) std::rethrow_exception(parcel_->error);
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    return parcel_->work->wait_for(std::max(left, Milliseconds(1)));
  }

  bool done() override {
    std::lock_guard lock(parcel_->mutex);
    return parcel_->is_started && (parcel_->error || parcel_->work->done());
  }

 private:
  std::shared_ptr<Parcel> parcel_;
};

Courier::~Courier() { stop(); }

void Courier::stop() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Transport::Started Courier::start_after(std::function<void()> ready,
                                        std::function<Transport::Started()> start) {
  auto parcel = std::make_shared<Parcel>();
  parcel->ready = std::move(ready);
  parcel->start = std::move(start);
  std::lock_guard lock(mutex_);
  queue_.push_back(parcel);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
  return std::make_unique<Delivery>(std::move(parcel));
}

bool Courier::is_idle_within(Milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return queue_.empty(); });
}

void Courier::refuse_if_stopping() {
  std::lock_guard lock(mutex_);
  if (is_stopping_) throw std::runtime_error("its world ended before it was started");
}

void Courier::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Parcel> parcel = queue_.front();
    lock.unlock();
    try {
      parcel->ready();
      refuse_if_stopping();
      parcel->deliver(parcel->start(), nullptr);
    } catch (...) {  // Thrown again by whoever waits for it.
      parcel->deliver(nullptr, std::current_exception());
    }
    parcel->start = nullptr;  // Lets go of the tensors.
    lock.lock();
    queue_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace drivetrain::comm
