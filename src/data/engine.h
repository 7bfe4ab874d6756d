// SPDX-License-Identifier: Apache-2.0
// The state of a DataLoader between and during its passes. Touched by the loop's thread only.
#pragma once

#include <drivetrain/comm.h>
#include <drivetrain/data.h>

#include <memory>
#include <optional>
#include <vector>

#include "data/plan.h"

namespace drivetrain::data {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(std::shared_ptr<Source> source, DataLoaderOptions options);

  void attach(const World& world, at::Device device);
  std::shared_ptr<Pass> start_pass();

  Shard shard_of(int64_t count) const;
  // The length of an epoch in the unit of DataLoaderState, if known.
  std::optional<int64_t> epoch_length(uint64_t epoch) const;
  // Its samples, if known.
  std::optional<int64_t> num_samples() const;
  int64_t num_batches() const;
  std::optional<int64_t> remainder() const;
  // Rows of one rank's batch.
  int64_t local_batch_size() const;

  void set_epoch(uint64_t epoch);
  void load(const DataLoaderState& state);
  DataLoaderState state() const;

  // A pass reports that the batch in hand is this one, or that it has ended or been left.
  void batch_taken(const Pass& pass, uint64_t epoch, int64_t done);
  void pass_ended(const Pass& pass, bool whole, uint64_t epoch);
  void refresh_status();

  const Pass* innermost() const { return passes_.empty() ? nullptr : passes_.back(); }
  bool dispatches() const { return dispatch_ && world_size() > 1; }
  int rank() const { return world_ ? world_->rank() : 0; }
  int world_size() const { return world_ ? world_->world_size() : 1; }

  std::shared_ptr<Source> source_;
  DataLoaderOptions options_;
  std::optional<World> world_;
  at::Device device_ = at::kCPU;
  uint64_t seed_;
  bool dispatch_;
  std::optional<int64_t> root_length_;  // of the dataset on rank 0, where only that is read

  uint64_t next_epoch_ = 0;
  int64_t next_done_ = 0;     // samples of next_epoch_ that a loaded state has used up
  int64_t next_skipped_ = 0;  // rounds that the next pass leaves out
  uint64_t position_epoch_ = 0;
  int64_t position_done_ = 0;

  std::vector<const Pass*> passes_;  // the innermost last
  std::shared_ptr<DataLoaderStatus> status_ = std::make_shared<DataLoaderStatus>();

 private:
  Order order_of(uint64_t epoch) const;
  void require_equal_loaders(const World& world) const;
  std::shared_ptr<Reading> make_reading(uint64_t epoch);
};

// Throws ConfigError if an option is out of range or contradicts another.
void check_options(const DataLoaderOptions& options, const Source& source);

}  // namespace drivetrain::data
