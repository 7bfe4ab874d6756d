// SPDX-License-Identifier: Apache-2.0
#include "training/accumulation.h"

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "parallel/gradient_sync.h"
#include "training/refuse.h"

namespace drivetrain::training {
namespace {

void check_steps(int64_t steps) {
  if (steps < 1)
    refuse(core::str("gradient accumulation over ", steps,
                     " micro-batches; allowed: 1 or more; correct it"));
}

// Follows how often a batch of the loader is cut. Returns whether this call is its last one, as far
// as the batches before it tell.
bool is_last_call_of_batch(Accumulation::Group& group, const DataLoaderStatus& loader) {
  if (group.pass != loader.started || group.batch != loader.num_taken) {
    if (group.pass == loader.started && group.calls > 0) group.calls_a_batch = group.calls;
    group.pass = loader.started;
    group.batch = loader.num_taken;
    group.calls = 0;
  }
  return ++group.calls >= group.calls_a_batch;
}

}  // namespace

Accumulation::Accumulation(const GradientAccumulationOptions& options) : options_(options) {
  check_steps(steps());
}

void Accumulation::set_steps(int64_t steps) {
  check_steps(steps);
  options_.steps = steps;
}

Accumulation::Group& Accumulation::group_of(const Models& models) {
  if (models.empty()) refuse("accumulate() without a model; allowed: one or more prepared models");
  std::vector<uint64_t> key;
  for (const auto& model : models) key.push_back(model->id);
  std::sort(key.begin(), key.end());
  return groups_[key];
}

// At the first micro-batch, after the call was counted.
void Accumulation::plan(Group& group, const std::optional<DataLoaderStatus>& loader) const {
  group.size = group.steps = steps();
  group.samples = 0;
  group.has_means = group.has_sums = false;
  if (!loader || !options_.sync_with_dataloader || loader->num_left < 0) return;
  const int64_t of_this_batch = std::max<int64_t>(group.calls_a_batch - group.calls + 1, 1);
  const int64_t left = of_this_batch + loader->num_left * group.calls_a_batch;
  group.size = std::min(group.size, left);
}

void Accumulation::begin(Models models, const std::optional<DataLoaderStatus>& loader) {
  Group& group = group_of(models);
  const bool is_last_call = !loader || is_last_call_of_batch(group, *loader);
  const bool is_new = group.count == 0;
  if (is_new) plan(group, loader);
  ++group.count;
  const bool is_last_of_pass =
      loader && options_.sync_with_dataloader && loader->at_end && is_last_call;
  is_boundary_ = group.is_boundary = group.count >= group.steps || is_last_of_pass;
  Scope scope{&group, std::move(models), {}};
  for (const auto& model : scope.models) {
    if (is_new) model->group = next_group_;
    if (is_new) model->has_gradients = false;
    model->is_boundary = group.is_boundary;
    scope.was_syncing.push_back(model->sync && model->sync->is_syncing());
    if (model->sync && !group.is_boundary && !options_.sync_each_batch)
      model->sync->set_sync(false);
  }
  if (is_new) ++next_group_;
  scopes_.push_back(std::move(scope));
}

void Accumulation::end() noexcept {
  const Scope& scope = scopes_.back();
  for (size_t i = 0; i < scope.models.size(); ++i)
    if (scope.models[i]->sync) scope.models[i]->sync->set_sync(scope.was_syncing[i]);
  if (scope.group->is_boundary) scope.group->count = 0;
  scopes_.pop_back();
}

Accumulation::Group* Accumulation::flush(const Models& models) {
  Group& group = group_of(models);
  if (group.count == 0) return nullptr;
  is_boundary_ = group.is_boundary = true;
  for (const auto& model : models) model->is_boundary = true;
  return &group;
}

}  // namespace drivetrain::training
