// SPDX-License-Identifier: Apache-2.0
// Threads that do tasks in parallel and hand over the results in the order of the tasks.
//
// plan() is called by one thread at a time and returns the next task, or an empty one at the end.
// At most `capacity` results are finished or under way beyond the last one taken.
#pragma once

#include <ATen/ThreadLocalState.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/sample_scope.h"

namespace drivetrain::data {

using Result = std::shared_ptr<void>;
using Task = std::function<Result(int worker)>;

class OrderedPool {
 public:
  struct Options {
    int num_workers = 1;
    int64_t capacity = 2;
    std::chrono::milliseconds timeout{0};  // for one result; 0: none
    int rank = 0;                          // what the threads' messages say
    int world_size = 1;
  };

  // Starts the threads, which inherit the caller's LibTorch thread-local state. Throws ConfigError
  // if the system cannot start that many.
  OrderedPool(const Options& options, std::function<Task()> plan);

  // Blocks until every thread has finished the sample that it is reading, but for threads that
  // have let a timeout pass: those are left to end by themselves.
  ~OrderedPool();

  OrderedPool(const OrderedPool&) = delete;
  OrderedPool& operator=(const OrderedPool&) = delete;

  // Blocks. The next result; null at the end. Throws what its task threw.
  // Throws SampleError if the timeout passes: it names the sample that is being read.
  Result next();

 private:
  void stop();

  struct Slot {
    std::atomic<bool> finished = false;
    std::atomic<int64_t> ticket = -1;
    ReadState reading;
  };

  struct Outcome {
    Result result;
    std::exception_ptr error;
  };

  // Shared with the threads, so that one that hangs may outlive the pool.
  struct Shared {
    Options options;
    std::function<Task()> plan;
    std::mutex planning;  // held while plan() runs, and taken before `mutex`
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int64_t, Outcome> outcomes;
    std::vector<std::unique_ptr<Slot>> slots;
    int64_t num_taken = 0;
    int64_t num_planned = 0;
    std::optional<int64_t> end;  // the ticket behind the last task
    bool stopped = false;
    std::atomic<bool> stopped_reading = false;

    Task take_task(Slot& slot);
    void finish(int64_t ticket, Outcome outcome);
  };

  static void work(const std::shared_ptr<Shared>& shared, int worker,
                   const at::ThreadLocalState& state);
  [[noreturn]] void fail_late();

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  bool timed_out_ = false;
};

}  // namespace drivetrain::data
