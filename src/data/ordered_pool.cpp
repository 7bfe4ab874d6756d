// SPDX-License-Identifier: Apache-2.0
#include "data/ordered_pool.h"

#include <drivetrain/dataset.h>
#include <drivetrain/error.h>

#include <system_error>
#include <utility>

#include "core/rank_label.h"
#include "core/text.h"

namespace drivetrain::data {

OrderedPool::OrderedPool(const Options& options, std::function<Task()> plan)
    : shared_(std::make_shared<Shared>()) {
  shared_->options = options;
  shared_->plan = std::move(plan);
  for (int i = 0; i < options.num_workers; ++i) {
    shared_->slots.push_back(std::make_unique<Slot>());
    shared_->slots.back()->reading.stopped = &shared_->stopped_reading;
  }
  const at::ThreadLocalState state;
  try {
    for (int i = 0; i < options.num_workers; ++i)
      threads_.emplace_back([shared = shared_, i, state] { work(shared, i, state); });
  } catch (const std::system_error& error) {
    const size_t num_started = threads_.size();
    stop();
    throw ConfigError(core::str("num_workers is ", options.num_workers,
                                ", but the system started only ", num_started, " threads (",
                                error.what(), "); allowed: what it can start; lower num_workers"));
  }
}

OrderedPool::~OrderedPool() { stop(); }

void OrderedPool::stop() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopped = true;
    shared_->stopped_reading = true;
  }
  shared_->changed.notify_all();
  for (size_t i = 0; i < threads_.size(); ++i) {
    // After a timeout some thread hangs, and others may wait for it.
    if (timed_out_ && !shared_->slots[i]->finished)
      threads_[i].detach();
    else
      threads_[i].join();
  }
}

Task OrderedPool::Shared::take_task(Slot& slot) {
  std::lock_guard planning_lock(planning);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock,
                 [&] { return stopped || end || num_planned - num_taken < options.capacity; });
    if (stopped || end) return {};
    slot.ticket = num_planned++;
  }
  Task task;
  std::exception_ptr error;
  try {
    task = plan();
  } catch (...) {
    error = std::current_exception();
  }
  if (!task) {
    // An error of the plan itself takes the place of the task and ends the tasks.
    std::lock_guard lock(mutex);
    end = error ? slot.ticket + 1 : slot.ticket.load();
    if (error) outcomes[slot.ticket] = {nullptr, error};
    changed.notify_all();
  }
  return task;
}

void OrderedPool::Shared::finish(int64_t ticket, Outcome outcome) {
  std::lock_guard lock(mutex);
  outcomes[ticket] = std::move(outcome);
  changed.notify_all();
}

void OrderedPool::work(const std::shared_ptr<Shared>& shared, int worker,
                       const at::ThreadLocalState& state) {
  at::ThreadLocalStateGuard inherited(state);
  core::set_rank_label(shared->options.rank, shared->options.world_size);
  Slot& slot = *shared->slots[static_cast<size_t>(worker)];
  ReadStateGuard reading(slot.reading);
  while (Task task = shared->take_task(slot)) {
    Outcome outcome;
    try {
      outcome.result = task(worker);
    } catch (...) {
      outcome.error = std::current_exception();
    }
    shared->finish(slot.ticket, std::move(outcome));
    slot.ticket = -1;
  }
  slot.finished = true;
}

Result OrderedPool::next() {
  std::unique_lock lock(shared_->mutex);
  const int64_t ticket = shared_->num_taken;
  const auto ready = [&] {
    return shared_->outcomes.contains(ticket) || (shared_->end && ticket >= *shared_->end);
  };
  if (shared_->options.timeout.count() == 0)
    shared_->changed.wait(lock, ready);
  else if (!shared_->changed.wait_for(lock, shared_->options.timeout, ready))
    fail_late();
  const auto found = shared_->outcomes.find(ticket);
  if (found == shared_->outcomes.end()) return nullptr;
  Outcome outcome = std::move(found->second);
  shared_->outcomes.erase(found);
  ++shared_->num_taken;
  shared_->changed.notify_all();
  lock.unlock();
  if (outcome.error) std::rethrow_exception(outcome.error);
  return outcome.result;
}

void OrderedPool::fail_late() {
  timed_out_ = true;
  int64_t index = -1;
  for (const auto& slot : shared_->slots)
    if (slot->ticket == shared_->num_taken) index = slot->reading.index;
  throw SampleError(index, core::str("reading sample ", index, " has taken longer than ",
                                     shared_->options.timeout.count(),
                                     " ms; allowed: the option timeout; raise it, or see why the "
                                     "dataset hangs there"));
}

}  // namespace drivetrain::data
