// SPDX-License-Identifier: Apache-2.0
// One walk over an epoch: reads by itself, by workers, or receives what rank 0 reads.
#pragma once

#include <memory>
#include <optional>

#include "data/engine.h"
#include "data/ordered_pool.h"

namespace drivetrain::data {

class Pass {
 public:
  // `reading` is null on a rank that reads nothing itself, or where `error` is thrown instead.
  Pass(std::shared_ptr<Engine> engine, uint64_t epoch, std::shared_ptr<const Reading> reading,
       std::exception_ptr error);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Blocks. The rank's next batch on the loader's device; null at the end.
  ErasedBatch next();

  uint64_t started() const { return started_; }
  int64_t real_size() const { return real_size_; }
  bool at_end() const { return at_end_; }
  int64_t num_taken() const { return num_taken_; }
  // Batches that follow the one taken last on this rank; -1 if the source does not know.
  int64_t num_left() const;

 private:
  // This rank's part of a round, and what the round says to all.
  struct Own {
    Part part;
    bool final = false;
    int64_t done = 0;
  };

  std::shared_ptr<Round> read_round();
  std::optional<Own> next_own();
  std::shared_ptr<Round> read_for_all();
  std::optional<Own> send_round();
  std::optional<Own> receive_round();
  void place(Part& part) const;
  void end(bool whole);

  std::shared_ptr<Engine> engine_;
  uint64_t epoch_;
  std::shared_ptr<const Reading> reading_;
  std::exception_ptr error_;         // in place of the first round
  std::function<Task()> plan_;       // without workers
  std::optional<OrderedPool> pool_;  // with workers
  uint64_t started_;
  int64_t real_size_ = -1;
  int64_t num_taken_ = 0;
  std::optional<int64_t> length_;  // of the epoch, in samples
  int64_t done_ = 0;               // of them
  bool at_end_ = false;
  bool final_ = false;  // the round in hand is the last one
  bool open_ = true;
};

}  // namespace drivetrain::data
