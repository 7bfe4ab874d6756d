// SPDX-License-Identifier: Apache-2.0
// Backward passes and micro-batches: the Accelerator's part of them.
#include <drivetrain/accelerator.h>

#include <unordered_set>
#include <utility>

#include "core/text.h"
#include "parallel/gradient_sync.h"
#include "training/refuse.h"
#include "training/step_control.h"

namespace drivetrain {

using training::refuse;

Accumulate::Accumulate(std::shared_ptr<training::StepControl> control,
                       std::vector<std::shared_ptr<training::ModelState>> models,
                       const std::optional<DataLoaderStatus>& loader)
    : control_(std::move(control)) {
  control_->accumulation().begin(std::move(models), loader);
  is_boundary_ = control_->accumulation().is_boundary();
}

Accumulate::~Accumulate() { control_->accumulation().end(); }

void Accelerator::check_loss(const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1)
    refuse(core::str("backward takes a loss of one element; this one ",
                     loss.defined() ? core::str("has shape ", loss.sizes()) : "is undefined",
                     "; reduce it with mean() or sum()"));
  if (!loss.requires_grad())
    refuse(
        "the loss does not depend on any parameter that requires a gradient; check that forward "
        "was not under NoGradGuard and that parameters are not frozen");
}

void Accelerator::backward(const at::Tensor& loss) {
  check_loss(loss);
  control_->backward(loss);
}

void Accelerator::backward(const at::Tensor& loss_sum, int64_t count) {
  check_loss(loss_sum);
  control_->backward(loss_sum, count);
}

bool Accelerator::sync_gradients() const { return control_->accumulation().is_boundary(); }

int64_t Accelerator::gradient_accumulation_steps() const {
  return control_->accumulation().steps();
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  control_->accumulation().set_steps(steps);
}

void Accelerator::flush(const States& models) const { control_->flush(models); }

const std::shared_ptr<LossScaler>& Accelerator::scaler() const { return control_->shared_scaler(); }

Autocast Accelerator::autocast(bool enabled) const {
  return hardware_->autocast(enabled, cast_ ? cast_->autocast : std::nullopt);
}

std::unique_ptr<detail::StepGate> Accelerator::make_gate() const {
  return std::make_unique<training::OptimizerGate>(control_);
}

bool Accelerator::prepare_to_clip(const std::vector<at::Tensor>& parameters) const {
  if (control_->is_accumulating(parameters)) return false;
  control_->widen_gradients();
  LossScaler* scaler = control_->scaler();
  if (scaler == nullptr) return true;
  std::unordered_set<const void*> wanted;
  for (const at::Tensor& parameter : parameters) wanted.insert(parameter.unsafeGetTensorImpl());
  for (const auto& weak : optimizers_) {
    const auto place = weak.lock();
    if (!place || scaler->has_unscaled(**place)) continue;
    for (const auto& group : (*place)->param_groups())
      for (const at::Tensor& parameter : group.params())
        if (wanted.contains(parameter.unsafeGetTensorImpl()) && !scaler->has_unscaled(**place))
          scaler->unscale_(**place);
  }
  return true;
}

}  // namespace drivetrain
