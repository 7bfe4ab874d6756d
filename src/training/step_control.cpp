// SPDX-License-Identifier: Apache-2.0
#include "training/step_control.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/text.h"
#include "parallel/gradient_sync.h"
#include "training/master_weights.h"
#include "training/refuse.h"

namespace drivetrain::training {
namespace {

std::atomic<uint64_t> num_models{0};

// Multiplies the gradients of a model, each once.
void scale_gradients(const ModelState& model, double factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::unordered_set<const void*> seen;
  for (const auto& [name, parameter] : model.parameters)
    if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      gradients.push_back(parameter.grad());
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
}

// The factor is the gradient that backward starts from, which saves a product and its backward; in
// 16 bits it could overflow.
void start_backward(const at::Tensor& loss, double factor) {
  if (factor == 1) return loss.backward();
  const at::Tensor start =
      at::isReducedFloatingType(loss.scalar_type()) ? loss.to(at::kFloat) : loss;
  start.backward(at::full(start.sizes(), factor, start.options()));
}

size_t num_parameters_of(const torch::optim::Optimizer& optimizer) {
  size_t number = 0;
  for (const auto& group : optimizer.param_groups()) number += group.params().size();
  return number;
}

}  // namespace

StepControl::StepControl(World world, const GradientAccumulationOptions& accumulation,
                         std::shared_ptr<LossScaler> scaler)
    : world_(std::move(world)), accumulation_(accumulation), scaler_(std::move(scaler)) {}

std::shared_ptr<ModelState> StepControl::add_model(NamedTensors parameters,
                                                   std::shared_ptr<parallel::GradientSync> sync,
                                                   std::shared_ptr<MasterWeights> masters) {
  std::erase_if(models_, [](const auto& model) { return model.expired(); });
  auto model = std::make_shared<ModelState>();
  model->id = ++num_models;
  model->sync = std::move(sync);
  model->masters = std::move(masters);
  has_masters_ = has_masters_ || model->masters != nullptr;
  for (const auto& [name, parameter] : parameters)
    model->identities.insert(parameter.unsafeGetTensorImpl());
  model->parameters = std::move(parameters);
  models_.push_back(model);
  ++version_;
  return model;
}

Models StepControl::models() const {
  Models alive;
  for (const auto& weak : models_)
    if (auto model = weak.lock()) alive.push_back(std::move(model));
  return alive;
}

std::string StepControl::name_of(const at::Tensor& parameter) const {
  for (const auto& model : models())
    for (const auto& [name, other] : model->parameters)
      if (other.is_same(parameter)) return core::str("parameter ", name);
  return "";
}

Accumulation::Group& StepControl::group_of_loss() {
  if (auto* scope = accumulation_.current()) return *scope->group;
  outside_ = {.count = 1};
  return outside_;
}

void StepControl::backward(const at::Tensor& loss) {
  Accumulation::Group& group = group_of_loss();
  if (group.has_sums)
    refuse(
        "backward(loss) in a group of micro-batches that began with backward(loss_sum, count); "
        "allowed: one of the two for all of a group");
  group.has_means = true;
  run(loss, 1.0 / static_cast<double>(group.size));
}

void StepControl::backward(const at::Tensor& loss_sum, int64_t count) {
  if (count < 0) refuse(core::str("a sum over ", count, " samples; allowed: 0 or more"));
  Accumulation::Group& group = group_of_loss();
  if (group.has_means)
    refuse(
        "backward(loss_sum, count) in a group of micro-batches that began with backward(loss); "
        "allowed: one of the two for all of a group");
  if (&group == &outside_) models_outside_ = models();
  if (&group == &outside_ && models_outside_.size() != 1)
    refuse(core::str("backward(loss_sum, count) outside of accumulate() with ",
                     models_outside_.size(),
                     " prepared models; allowed: one, or within accumulate(model)"));
  group.has_sums = true;
  group.samples += static_cast<double>(count);
  run(loss_sum, 1);
}

void StepControl::run(const at::Tensor& loss, double factor) {
  if (scaler_ && scaler_->is_due()) scaler_->update();
  if (scaler_) factor *= scaler_->get_scale();
  start_backward(loss, factor);
  // With one model it is certain which one this was; a rank whose loss reaches no parameter of it
  // must still take part in the average.
  const Models alive = models();
  if (alive.size() == 1 && alive[0]->sync) alive[0]->sync->after_backward();
  widen_gradients();
  after_backward();
}

void StepControl::after_backward() {
  const auto* scope = accumulation_.current();
  const Accumulation::Group& group = scope != nullptr ? *scope->group : outside_;
  const Models& models = scope != nullptr ? scope->models : models_outside_;
  if (scope != nullptr)
    for (const auto& model : models) model->has_gradients = true;
  if (group.is_boundary) complete(group, models);
  models_outside_.clear();
}

void StepControl::complete(const Accumulation::Group& group, const Models& models) const {
  double factor = 1;
  if (group.has_sums) {
    const at::Tensor mine = at::scalar_tensor(group.samples, at::kDouble);
    const double samples = all_reduce(world_, mine).item<double>();
    // Gradients are the mean over the ranks; a sum over nothing is left as it is.
    factor = samples > 0 ? world_.world_size() / samples : 1;
  } else if (group.has_means && group.count != group.size) {
    factor = static_cast<double>(group.size) / static_cast<double>(group.count);
  }
  if (factor == 1) return;
  for (const auto& model : models) scale_gradients(*model, factor);
}

void StepControl::flush(const Models& models) {
  Accumulation::Group* group = accumulation_.flush(models);
  if (group == nullptr) return;
  for (const auto& model : models)
    if (model->sync) model->sync->reduce_now();
  complete(*group, models);
  group->count = 0;
}

void StepControl::widen_gradients() const {
  if (!has_masters_) return;
  for (const auto& model : models())
    if (model->masters) model->masters->widen_gradients();
}

bool StepControl::is_accumulating(const std::vector<at::Tensor>& parameters) const {
  for (const auto& weak : models_) {
    const auto model = weak.lock();
    if (!model || model->is_boundary) continue;
    if (std::ranges::any_of(parameters, [&](const auto& p) { return model->owns(p); })) return true;
  }
  return false;
}

void OptimizerGate::find_owners(torch::optim::Optimizer& optimizer) {
  const size_t number = num_parameters_of(optimizer);
  if (version_ == control_->version() && number == num_parameters_) return;
  std::vector<Owner> owners;
  for (const auto& model : control_->models()) {
    const bool is_owner = std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
      return std::ranges::any_of(group.params(), [&](const auto& p) { return model->owns(p); });
    });
    if (!is_owner) continue;
    const auto known = std::ranges::find_if(
        owners_, [&](const Owner& owner) { return owner.model.lock() == model; });
    owners.push_back({model, known == owners_.end() ? 0 : known->stepped_group});
  }
  owners_ = std::move(owners);
  version_ = control_->version();
  num_parameters_ = number;
}

StepOutcome OptimizerGate::ask(torch::optim::Optimizer& optimizer, bool has_closure) {
  const StepOutcome outcome = decide(optimizer, has_closure);
  // Weights that an autocast scope around the step has converted are about to change.
  if (outcome == StepOutcome::stepped) at::autocast::clear_cache();
  return outcome;
}

StepOutcome OptimizerGate::decide(torch::optim::Optimizer& optimizer, bool has_closure) {
  if (control_->accumulation().is_used()) {
    find_owners(optimizer);
    for (const Owner& owner : owners_)
      if (const auto model = owner.model.lock(); model && !model->is_boundary)
        return StepOutcome::accumulating;
    for (Owner& owner : owners_)
      if (const auto model = owner.model.lock()) owner.stepped_group = model->group;
  }
  if (control_->has_masters() && has_closure)
    refuse(
        "step(closure) with parameters that are kept in 16 bits, which are float32 within a step; "
        "allowed: optimizers that step on gradients computed before; use autocast (mixed_precision "
        "= MixedPrecision::bf16), or no 16 bits, with this one");
  control_->widen_gradients();
  LossScaler* scaler = control_->scaler();
  if (scaler == nullptr) return StepOutcome::stepped;
  if (has_closure)
    refuse(
        "step(closure) with a loss scale, which cannot change within a step; allowed: optimizers "
        "that step on gradients computed before; use bf16, or no mixed precision, with this one");
  return scaler->may_step(optimizer) ? StepOutcome::stepped : StepOutcome::skipped;
}

at::Tensor OptimizerGate::run(torch::optim::Optimizer& optimizer,
                              const std::function<at::Tensor()>& step) {
  if (!control_->has_masters()) return step();
  find_owners(optimizer);
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) parameters.push_back(parameter);
  Models models;  // outlive what changes them
  std::vector<std::unique_ptr<MasterWeights::Step>> changes;
  for (const Owner& owner : owners_)
    if (auto model = owner.model.lock(); model && model->masters) {
      models.push_back(model);
      changes.push_back(std::make_unique<MasterWeights::Step>(*model->masters, parameters));
    }
  at::Tensor loss = step();
  for (const auto& change : changes) change->finish();
  return loss;
}

bool OptimizerGate::keeps_gradients(torch::optim::Optimizer& optimizer) {
  if (!control_->accumulation().is_used()) return false;
  find_owners(optimizer);
  return std::ranges::any_of(owners_, [](const Owner& owner) {
    const auto model = owner.model.lock();
    return model && model->has_gradients && owner.stepped_group != model->group;
  });
}

}  // namespace drivetrain::training
