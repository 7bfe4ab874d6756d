// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <drivetrain/local_sgd.h>

#include <exception>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/text.h"
#include "parallel/gradient_sync.h"
#include "training/master_weights.h"
#include "training/model_state.h"
#include "training/refuse.h"

namespace drivetrain {

LocalSgd::LocalSgd(World world, std::shared_ptr<training::ModelState> model,
                   LocalSgdOptions options)
    : world_(std::move(world)),
      model_(std::move(model)),
      options_(options),
      exceptions_at_start_(std::uncaught_exceptions()) {
  if (options.steps < 1)
    training::refuse(core::str("LocalSgd over ", options.steps, " steps; allowed: 1 or more"));
  options_.enabled = options.enabled && model_->sync != nullptr;
  if (!options_.enabled) return;
  was_syncing_ = model_->sync->is_syncing();
  model_->sync->set_sync(false);
}

LocalSgd::~LocalSgd() noexcept(false) {
  if (!options_.enabled) return;
  model_->sync->set_sync(was_syncing_);
  if (std::uncaught_exceptions() == exceptions_at_start_) average();
}

void LocalSgd::step() {
  if (options_.enabled && ++num_steps_ % options_.steps == 0) average();
}

void LocalSgd::average() {
  if (!options_.enabled) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters;
  std::unordered_set<const void*> seen;
  for (const auto& [name, parameter] : model_->parameters)
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  std::optional<training::MasterWeights::Step> in_float32;
  if (model_->masters) in_float32.emplace(*model_->masters, parameters);
  const auto means = all_reduce(world_, parameters, ReduceOp::mean);
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].detach().copy_(means[i]);
  if (in_float32) in_float32->finish();
}

}  // namespace drivetrain
