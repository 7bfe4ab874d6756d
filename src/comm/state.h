// SPDX-License-Identifier: Apache-2.0
// What the handles of one World share: facts, transport, and the collectives under way. Every wait
// of the room goes through State::await.
#pragma once

#include <drivetrain/comm.h>

#include <array>
#include <functional>
#include <mutex>

#include "comm/transport.h"

namespace drivetrain::comm {

// One collective, cheap to keep: the text is made only when an error needs it.
struct Record {
  uint64_t number = 0;    // Counts the collectives of a world from 1; equal on all ranks.
  const char* name = "";  // "all_reduce"
  int64_t num_tensors = 0;
  at::ScalarType dtype = at::kByte;  // Of the first tensor, as is the shape.
  int64_t num_dims = 0;
  std::array<int64_t, 4> shape{};
  Milliseconds timeout{};
  std::chrono::steady_clock::time_point start;
};

// "all_reduce #12 of float32[2, 3] and 4 more".
std::string describe(const Record& record);

class State {
 public:
  State(ProcessFacts facts, Config config, std::unique_ptr<Transport> transport);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const ProcessFacts& facts() const { return facts_; }
  Transport& transport() { return *transport_; }

  // Numbers a collective that is about to start. Throws CommError if the world has failed.
  Record begin(const char* name, c10::ArrayRef<at::Tensor> tensors,
               const CollectiveOptions& options);

  // Blocks until `work`, a part of the collective, is complete. Throws CommError.
  void await(Work& work, const Record& record);

  void fail(std::string_view reason);

  // Throws CommError on this rank and tells the others.
  [[noreturn]] void raise(const std::string& message);

  // Throws std::invalid_argument unless root is a rank.
  void require_root(const char* name, int root) const;

 private:
  const ProcessFacts facts_;
  const Config config_;
  std::unique_ptr<Transport> transport_;  // None in a world of one.

  std::mutex mutex_;
  uint64_t number_ = 0;
  std::string failure_;  // Why the world cannot be used any more.
};

// A collective that the caller waits for later.
class Call {
 public:
  Call(std::shared_ptr<State> state, Record record, std::unique_ptr<Work> work,
       std::function<void()> finish)
      : state_(std::move(state)),
        record_(record),
        work_(std::move(work)),
        finish_(std::move(finish)) {}

  void wait();
  bool done();

 private:
  std::shared_ptr<State> state_;
  Record record_;
  std::mutex mutex_;
  std::unique_ptr<Work> work_;  // None once waited for.
  std::function<void()> finish_;
};

}  // namespace drivetrain::comm
