// SPDX-License-Identifier: Apache-2.0
// What one pass reads, as tasks: one task is one round, for one rank or for all of them.
#pragma once

#include <drivetrain/detail/source.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/ordered_pool.h"
#include "data/shard.h"

namespace drivetrain::data {

// One rank's part of a round.
struct Part {
  ErasedBatch batch;      // null where the rank has none
  int64_t real_size = 0;  // rows that are no filling
  bool last = false;      // of the rank's batches
};

struct Round {
  std::vector<Part> parts;  // of first_rank, first_rank + 1, ..
  bool final = false;       // no round follows
  int64_t done = 0;         // samples (batches with a batch sampler) of the epoch that are used up
};

// The samples of an epoch: 0 .. count-1, `samples`, or `batches`.
struct Order {
  int64_t count = 0;
  std::vector<int64_t> samples;
  std::vector<std::vector<int64_t>> batches;
};

// All that a pass's tasks need; they hold it, so that a thread that hangs may outlive the pass.
struct Reading {
  std::shared_ptr<Source> source;
  std::vector<std::shared_ptr<Source>> worker_sources;  // one for each worker
  Order order;
  Shard shard;
  int first_rank = 0;
  int num_ranks = 1;
  uint64_t seed = 0;
  uint64_t epoch = 0;
  bool pin = false;
};

// The tasks of a pass in order, each giving a Round; an empty task ends them.
std::function<Task()> map_plan(const std::shared_ptr<const Reading>& reading);
std::function<Task()> stream_plan(std::shared_ptr<const Reading> reading);

}  // namespace drivetrain::data
