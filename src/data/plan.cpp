// SPDX-License-Identifier: Apache-2.0
#include "data/plan.h"

#include <algorithm>
#include <utility>

#include "data/place.h"
#include "data/sample_scope.h"

namespace drivetrain::data {
namespace {

using ReadingPtr = std::shared_ptr<const Reading>;

Source& source_of(const Reading& reading, int worker) {
  return *reading.worker_sources[static_cast<size_t>(worker)];
}

void pin_parts(const Reading& reading, Round& round) {
  if (!reading.pin) return;
  for (Part& part : round.parts)
    if (part.batch) reading.source->map_tensors(part.batch.get(), pinned);
}

// The samples of the rank's k-th batch.
std::vector<int64_t> indices_of(const Reading& reading, int rank, int64_t k) {
  std::vector<int64_t> positions = reading.shard.positions(rank, k);
  const Order& order = reading.order;
  if (!order.batches.empty() && !positions.empty())
    return order.batches[static_cast<size_t>(positions.front())];
  if (!order.samples.empty())
    for (int64_t& p : positions) p = order.samples[static_cast<size_t>(p)];
  return positions;
}

Part read_part(const Reading& reading, int rank, int64_t k, int worker) {
  if (k >= reading.shard.num_batches(rank)) return {};
  const std::vector<int64_t> indices = indices_of(reading, rank, k);
  const int64_t real = reading.shard.num_real(rank, k);
  Part part;
  part.batch = source_of(reading, worker).read(indices);
  // With a batch sampler, one position is one batch.
  part.real_size =
      reading.order.batches.empty() ? real : real * static_cast<int64_t>(indices.size());
  part.last = k + 1 == reading.shard.num_batches(rank);
  return part;
}

Result read_round(const Reading& reading, int64_t k, int64_t num_rounds, int worker) {
  const EpochScope epoch(reading.seed, reading.epoch);
  auto round = std::make_shared<Round>();
  for (int i = 0; i < reading.num_ranks; ++i)
    round->parts.push_back(read_part(reading, reading.first_rank + i, k, worker));
  round->final = k + 1 == num_rounds;
  round->done = reading.shard.done_after(k);
  pin_parts(reading, *round);
  return round;
}

// Reads a stream round by round, one round ahead of the one it gives out, so that a batch knows
// whether it is the last.
class StreamPlan {
 public:
  explicit StreamPlan(ReadingPtr reading) : reading_(std::move(reading)) {}

  Task next() {
    const EpochScope epoch(reading_->seed, reading_->epoch);
    if (!begun_) begin();
    if (error_) std::rethrow_exception(error_);
    if (!has_batch(next_, reading_->first_rank)) return {};
    const Chunk round = std::exchange(next_, {});
    const int64_t first = position_ - round.count;
    read_ahead(round);
    return task_of(round, first);
  }

 private:
  int64_t rows() const { return reading_->shard.world_size * reading_->shard.batch_size; }

  void begin() {
    begun_ = true;
    while (position_ < reading_->shard.num_done) {
      const int64_t wanted = std::min(rows(), reading_->shard.num_done - position_);
      if (pull(wanted).count < wanted) return;
    }
    next_ = pull(rows());
  }

  Chunk pull(int64_t count) {
    Chunk chunk = reading_->source->pull(position_, count);
    position_ += chunk.count;
    // Filling takes the epoch's first samples: as many as a round has at most.
    if (start_.count < rows() && chunk.count > 0) start_ = reading_->source->join(start_, chunk);
    return chunk;
  }

  // An error belongs to the round that it happened in: the one before it is given out first.
  void read_ahead(const Chunk& round) {
    if (round.count < rows()) return;
    try {
      next_ = pull(rows());
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  bool has_batch(const Chunk& round, int rank) const {
    const Shard& shard = reading_->shard;
    if (shard.drop_last) return round.count == rows();
    return round.count > (shard.even ? 0 : rank * shard.batch_size);
  }

  Task task_of(const Chunk& round, int64_t first) const {
    std::vector<Part> parts;
    for (int i = 0; i < reading_->num_ranks; ++i) {
      const int rank = reading_->first_rank + i;
      const int64_t behind = round.count - rank * reading_->shard.batch_size;
      parts.push_back({nullptr, std::clamp<int64_t>(behind, 0, reading_->shard.batch_size),
                       !error_ && !has_batch(next_, rank)});
    }
    const bool final = !error_ && !has_batch(next_, 0);
    return [reading = reading_, start = start_, round, first, parts, final](int worker) {
      return pick_round(*reading, start, round, first, parts, final, worker);
    };
  }

  static Result pick_round(const Reading& reading, const Chunk& start, const Chunk& chunk,
                           int64_t first, const std::vector<Part>& parts, bool final, int worker) {
    const EpochScope epoch(reading.seed, reading.epoch);
    auto round = std::make_shared<Round>(Round{parts, final, first + chunk.count});
    for (int i = 0; i < reading.num_ranks; ++i) {
      const int rank = reading.first_rank + i;
      const auto picks = picks_of_round(reading.shard, rank, chunk.count, start.count);
      if (!picks.empty())
        round->parts[static_cast<size_t>(i)].batch =
            source_of(reading, worker)
                .pick(start, chunk, picks, first + rank * reading.shard.batch_size);
    }
    pin_parts(reading, *round);
    return round;
  }

  ReadingPtr reading_;
  Chunk start_;           // at least the epoch's first round, or all of a shorter stream
  Chunk next_;            // the round to give out
  int64_t position_ = 0;  // behind next_
  bool begun_ = false;
  std::exception_ptr error_;
};

}  // namespace

std::function<Task()> map_plan(const ReadingPtr& reading) {
  const int64_t num_rounds = reading->shard.num_batches(reading->first_rank);
  return [reading, num_rounds, k = int64_t{0}]() mutable -> Task {
    if (k >= num_rounds) return {};
    return [reading, num_rounds, k = k++](int worker) {
      return read_round(*reading, k, num_rounds, worker);
    };
  };
}

std::function<Task()> stream_plan(ReadingPtr reading) {
  return [plan = std::make_shared<StreamPlan>(std::move(reading))] { return plan->next(); };
}

}  // namespace drivetrain::data
