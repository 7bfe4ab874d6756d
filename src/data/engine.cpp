// SPDX-License-Identifier: Apache-2.0
#include "data/engine.h"

#include <ATen/CPUGeneratorImpl.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "data/pass.h"
#include "data/permutation.h"
#include "data/place.h"
#include "data/sample_scope.h"

namespace drivetrain::data {

using core::str;

namespace {

void require(bool fine, const std::string& message) {
  if (!fine) throw ConfigError("data", message);
}

// What must be equal on all ranks, as it goes into messages.
struct Fingerprint {
  int64_t length = -1;
  int64_t batch_size = 0;
  bool shuffle = false;
  bool drop_last = false;
  bool even_batches = false;
  bool split_batches = false;
  bool dispatch = false;
  bool chosen_seed = false;
  uint64_t seed = 0;
  uint64_t epoch = 0;
  int64_t done = 0;
};

std::string describe(const Fingerprint& f) {
  const std::string length = f.length < 0 ? "unknown" : str(f.length);
  const std::string seed = f.chosen_seed ? str(", seed ", f.seed) : "";
  return str("length ", length, ", batch_size ", f.batch_size, ", shuffle ", f.shuffle,
             ", drop_last ", f.drop_last, ", even_batches ", f.even_batches, ", split_batches ",
             f.split_batches, ", dispatch_batches ", f.dispatch, seed, ", epoch ", f.epoch,
             ", samples done ", f.done);
}

Fingerprint fingerprint_of(const Engine& engine, bool dispatch) {
  const DataLoaderOptions& o = engine.options_;
  return {engine.epoch_length(engine.next_epoch_).value_or(-1),
          o.batch_size,
          o.shuffle,
          o.drop_last,
          o.even_batches,
          o.split_batches,
          dispatch,
          o.seed.has_value(),
          engine.seed_,
          engine.next_epoch_,
          engine.next_done_};
}

}  // namespace

void check_options(const DataLoaderOptions& o, const Source& source) {
  require(o.batch_size >= 1,
          str("batch_size is ", o.batch_size, "; allowed: 1 or more; correct it"));
  require(o.num_workers >= 0,
          str("num_workers is ", o.num_workers, "; allowed: 0 or more; correct it"));
  require(o.prefetch_factor >= 1,
          str("prefetch_factor is ", o.prefetch_factor, "; allowed: 1 or more; correct it"));
  require(o.timeout.count() >= 0,
          str("timeout is ", o.timeout.count(), " ms; allowed: 0 or more; correct it"));
  require(o.timeout.count() == 0 || o.num_workers > 0,
          "timeout is set and num_workers is 0: the loop's own thread cannot be stopped in the "
          "dataset; allowed: a timeout with workers; set num_workers to 1 or more");
  require(!o.sampler || !o.shuffle,
          "both sampler and shuffle are set; allowed: one of them; shuffle in the sampler");
  require(!o.batch_sampler || (!o.sampler && !o.shuffle && o.batch_size == 1),
          "batch_sampler is set together with batch_size, shuffle or sampler; allowed: "
          "batch_sampler alone, which decides all of them; leave the others out");
  require(!o.batch_sampler || !o.split_batches,
          "split_batches is set with a batch_sampler, whose batches have no fixed size; allowed: "
          "split_batches with batch_size; leave one of them out");
  if (source.is_stream()) {
    require(!o.shuffle && !o.sampler && !o.batch_sampler,
            "shuffle, sampler or batch_sampler is set for a stream, which has an order of its own; "
            "allowed: neither for streams; shuffle in the stream");
  } else {
    require(
        source.length().has_value(),
        "the dataset has get or get_batch, but its size() is empty; allowed: map-style datasets "
        "with a size; give it one, or read it as a stream with next()");
  }
}

Engine::Engine(std::shared_ptr<Source> source, DataLoaderOptions options)
    : source_(std::move(source)), options_(std::move(options)) {
  check_options(options_, *source_);
  seed_ = options_.seed.value_or(at::detail::getDefaultCPUGenerator().current_seed());
  dispatch_ = options_.dispatch_batches.value_or(source_->is_stream() && source_->can_send());
}

int64_t Engine::local_batch_size() const {
  return options_.split_batches ? options_.batch_size / world_size() : options_.batch_size;
}

Shard Engine::shard_of(int64_t count) const {
  return {.num_samples = count,
          .num_done = 0,
          .batch_size = options_.batch_sampler ? 1 : local_batch_size(),
          .world_size = world_size(),
          .drop_last = options_.drop_last,
          .even = options_.even_batches && world_size() > 1};
}

Order Engine::order_of(uint64_t epoch) const {
  Order order;
  const int64_t length = source_->length().value_or(0);
  const auto check = [&](int64_t index, const char* option) {
    require(index >= 0 && index < length, str("the option ", option, " gave index ", index,
                                              "; allowed: 0 to ", length - 1, "; correct it"));
  };
  if (options_.batch_sampler) {
    order.batches = options_.batch_sampler(epoch);
    for (const auto& batch : order.batches) {
      require(!batch.empty(),
              "batch_sampler gave an empty batch; allowed: at least one index; "
              "leave it out");
      for (const int64_t index : batch) check(index, "batch_sampler");
    }
    order.count = static_cast<int64_t>(order.batches.size());
  } else if (options_.sampler) {
    order.samples = options_.sampler(epoch);
    for (const int64_t index : order.samples) check(index, "sampler");
    order.count = static_cast<int64_t>(order.samples.size());
  } else {
    if (options_.shuffle) order.samples = permutation(seed_, epoch, length);
    order.count = length;
  }
  return order;
}

std::optional<int64_t> Engine::epoch_length(uint64_t epoch) const {
  if (options_.batch_sampler) return static_cast<int64_t>(options_.batch_sampler(epoch).size());
  if (options_.sampler) return static_cast<int64_t>(options_.sampler(epoch).size());
  if (root_length_) return *root_length_ < 0 ? std::nullopt : root_length_;
  return source_->length();
}

std::optional<int64_t> Engine::num_samples() const {
  if (!options_.batch_sampler) return epoch_length(next_epoch_);
  int64_t sum = 0;
  for (const auto& batch : options_.batch_sampler(next_epoch_))
    sum += static_cast<int64_t>(batch.size());
  return sum;
}

int64_t Engine::num_batches() const {
  const auto length = epoch_length(next_epoch_);
  require(length.has_value(),
          "size() of a loader over a stream that has no size(); allowed: streams with size(); give "
          "it one, or count the batches");
  return shard_of(*length).num_batches(rank());
}

std::optional<int64_t> Engine::remainder() const {
  const auto length = epoch_length(next_epoch_);
  if (!length || options_.batch_sampler) return std::nullopt;
  return options_.drop_last ? 0 : *length % (local_batch_size() * world_size());
}

void Engine::set_epoch(uint64_t epoch) {
  // A state just loaded is of that epoch: naming it again keeps the place.
  if (epoch == next_epoch_) return;
  next_epoch_ = position_epoch_ = epoch;
  next_done_ = position_done_ = 0;
}

DataLoaderState Engine::state() const {
  return {seed_, position_epoch_, position_done_, epoch_length(position_epoch_).value_or(-1)};
}

void Engine::load(const DataLoaderState& state) {
  const int64_t length = epoch_length(state.epoch).value_or(-1);
  require(state.length < 0 || length < 0 || state.length == length,
          str("the state is of a dataset of ", state.length, " samples, and this one has ", length,
              "; allowed: the same dataset; load the state of this one, or set_epoch"));
  require(state.samples_done >= 0 && (length < 0 || state.samples_done <= length),
          str("the state has ", state.samples_done, " samples done; allowed: 0 to ", length,
              "; load an undamaged state"));
  seed_ = state.seed;
  next_epoch_ = position_epoch_ = state.epoch;
  next_done_ = position_done_ = state.samples_done;
  next_skipped_ = 0;
}

void Engine::require_equal_loaders(const World& world) const {
  Fingerprint mine = fingerprint_of(*this, dispatch_);
  detail::Wire wire;
  detail::transfer(wire, mine);
  const std::vector<std::string> all = gather_object(world, wire.bytes);
  Fingerprint first;
  for (size_t r = 0; r < all.size(); ++r) {
    detail::Wire theirs(all[r], {});
    Fingerprint other;
    detail::transfer(theirs, other);
    if (r == 0) first = other;
    if (first.dispatch && other.dispatch) other.length = first.length;
    require(describe(first) == describe(other),
            str("the loaders of rank 0 and rank ", r, " differ: ", describe(first), "; and ",
                describe(other), "; allowed: equal ones; make them alike on all ranks"));
  }
}

void Engine::attach(const World& world, at::Device device) {
  require(passes_.empty(),
          "attach while a pass is under way; allowed: between passes; prepare the "
          "loader before the loop");
  const int64_t ranks = world.world_size();
  require(!options_.split_batches || options_.batch_size % ranks == 0,
          str("split_batches with batch_size ", options_.batch_size, " on ", ranks,
              " ranks; allowed: a round multiple of the number of ranks; change batch_size"));
  require(ranks == 1 || !dispatch_ || source_->can_send(),
          "dispatch_batches is set and the batch has parts that cannot be sent to other ranks; "
          "allowed: tensors, numbers, strings and what holds them (nested.h); collate to those, or "
          "set dispatch_batches = false");
  root_length_.reset();
  if (ranks > 1) {
    require_equal_loaders(world);
    seed_ = broadcast_object(world, seed_);
    if (dispatch_) root_length_ = broadcast_object(world, source_->length().value_or(-1));
  }
  world_ = world;
  device_ = device;
}

std::shared_ptr<Reading> Engine::make_reading(uint64_t epoch) {
  auto reading = std::make_shared<Reading>();
  reading->source = source_;
  source_->begin_epoch(epoch);
  reading->order = source_->is_stream() ? Order() : order_of(epoch);
  reading->shard = shard_of(reading->order.count);
  // Rounds of a batch sampler count batches, one a rank.
  reading->shard.num_done = next_done_ + next_skipped_ * reading->shard.batch_size * world_size();
  reading->first_rank = dispatches() ? 0 : rank();
  reading->num_ranks = dispatches() ? world_size() : 1;
  reading->seed = seed_;
  reading->epoch = epoch;
  reading->pin = options_.pin_memory && can_pin() && !dispatches();
  reading->worker_sources = {source_};
  for (int i = 1; i < options_.num_workers; ++i) {
    reading->worker_sources.push_back(source_->for_thread());
    require(reading->worker_sources.back() != nullptr,
            str("num_workers is ", options_.num_workers,
                ", and the dataset can neither be copied "
                "nor read as const, or its collate function cannot be copied; allowed: at most 1 "
                "worker for it; mark its get const, or pass a "
                "std::shared_ptr to it if its get may be called by several threads"));
  }
  return reading;
}

std::shared_ptr<Pass> Engine::start_pass() {
  const uint64_t epoch = next_epoch_;
  std::shared_ptr<Reading> reading;
  std::exception_ptr error;
  try {
    if (!dispatches() || rank() == 0) reading = make_reading(epoch);
  } catch (...) {
    // The ranks that wait for rank 0's first round must hear of it.
    if (!dispatches()) throw;
    error = std::current_exception();
  }
  auto pass = std::make_shared<Pass>(shared_from_this(), epoch, std::move(reading), error);
  position_epoch_ = epoch;
  position_done_ = next_done_;
  next_epoch_ = epoch + 1;
  next_done_ = next_skipped_ = 0;
  passes_.push_back(pass.get());
  refresh_status();
  return pass;
}

void Engine::batch_taken(const Pass& pass, uint64_t epoch, int64_t done) {
  position_epoch_ = epoch;
  position_done_ = done;
  if (innermost() == &pass) refresh_status();
}

void Engine::pass_ended(const Pass& pass, bool whole, uint64_t epoch) {
  std::erase(passes_, &pass);
  if (whole && position_epoch_ == epoch) {
    position_epoch_ = epoch + 1;
    position_done_ = 0;
  }
  refresh_status();
}

void Engine::refresh_status() {
  const Pass* pass = innermost();
  *status_ = pass == nullptr ? DataLoaderStatus{}
                             : DataLoaderStatus{.active = true,
                                                .started = pass->started(),
                                                .real_size = pass->real_size(),
                                                .at_end = pass->at_end(),
                                                .num_taken = pass->num_taken(),
                                                .num_left = pass->num_left()};
}

}  // namespace drivetrain::data
