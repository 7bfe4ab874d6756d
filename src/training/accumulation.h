// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation: which micro-batches make one update, and what their losses are divided by.
//
// A group belongs to a set of models, so that several models with optimizers of their own count for
// themselves. Its size is planned at its first micro-batch: the configured steps, or what is left
// of the loader's pass if that is less, so that the last, shorter group of an epoch is a mean, too.
// Where it turns out to have another size, gradients are rescaled at its end.
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/accelerator.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "training/model_state.h"

namespace drivetrain::training {

using Models = std::vector<std::shared_ptr<ModelState>>;

class Accumulation {
 public:
  struct Group {
    int64_t count = 0;   // micro-batches begun in the group under way; 0: none is under way
    int64_t steps = 1;   // that complete it, unless the pass ends before
    int64_t size = 1;    // that it will have, as far as can be told: what losses are divided by
    double samples = 0;  // the counts of this rank's sums so far
    bool has_means = false, has_sums = false;  // what backward was given; never both
    bool is_boundary = true;

    // How often accumulate() is called for one batch of the loader: more than once where the
    // program cuts it further.
    uint64_t pass = 0;
    int64_t batch = 0, calls = 0, calls_a_batch = 1;
  };

  // A micro-batch under way.
  struct Scope {
    Group* group = nullptr;
    Models models;
    std::vector<bool> was_syncing;
  };

  explicit Accumulation(const GradientAccumulationOptions& options);

  int64_t steps() const { return options_.steps.value_or(1); }
  // From the next group on. Throws std::invalid_argument below 1.
  void set_steps(int64_t steps);

  // Begins a micro-batch of `models`; `loader` is the pass that it is taken from, if any.
  // Throws std::invalid_argument if there are no models.
  void begin(Models models, const std::optional<DataLoaderStatus>& loader);
  void end() noexcept;

  // The innermost micro-batch under way; null outside.
  Scope* current() { return scopes_.empty() ? nullptr : &scopes_.back(); }
  // Whether the micro-batch that began last completes its group.
  bool is_boundary() const { return is_boundary_; }
  // True once there has been a micro-batch.
  bool is_used() const { return next_group_ > 1; }

  // Completes the group of `models` as it is: the next step is an update. False, with nothing
  // changed, if none is under way. The caller reduces and rescales.
  Group* flush(const Models& models);

 private:
  Group& group_of(const Models& models);
  void plan(Group& group, const std::optional<DataLoaderStatus>& loader) const;

  GradientAccumulationOptions options_;
  std::map<std::vector<uint64_t>, Group> groups_;  // by the models' ids, ascending
  std::vector<Scope> scopes_;
  uint64_t next_group_ = 1;
  bool is_boundary_ = true;
};

}  // namespace drivetrain::training
