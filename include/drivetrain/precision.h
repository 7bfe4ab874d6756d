// SPDX-License-Identifier: Apache-2.0
// Mixed precision: what runs in 16 bits, and the loss scale that keeps small gradients from
// vanishing in float16 (Micikevicius et al. 2018, 1710.03740).
//
// An Accelerator with AcceleratorOptions::mixed_precision does all of it. By hand:
//
//   drivetrain::GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                      // if the gradients are to be clipped
//   const auto outcome = scaler.step(optimizer);     // skipped if a gradient is not finite
//   scaler.update();                                 // once, after all optimizers
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/config.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

namespace torch::optim {
class Optimizer;
}

namespace drivetrain {

// The types that a model is kept, computed and averaged in, whatever the strategy that trains it;
// as FSDP's MixedPrecision and ColossalAI's master_weights. Each is float32, float16 or bfloat16.
//
// Batch and instance norms that keep statistics stay float32 throughout, as their kernels want it.
struct MixedPrecisionPolicy {
  // What parameters are kept in and forwards compute in, their floating-point inputs included: the
  // other way than MixedPrecision, whose autocast chooses operation by operation. Gradients of
  // 16-bit parameters are added up, unscaled, clipped and stepped on in float32.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // What gradients travel in between ranks, rounded before and after the sum; by default their own.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  // Floating-point buffers; by default as they are.
  std::optional<at::ScalarType> buffer_dtype = std::nullopt;
  // Floating-point outputs; by default float32 for those of 16 bits, unless float32_outputs is off.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  // With 16-bit parameters: optimizers step on float32 values, of which parameters are the rounded
  // copies. Without it an update that is too small for 16 bits is lost, or left to chance:
  bool master_weights = true;
  // With bfloat16 parameters: updated values are rounded up or down at random, each so often that
  // their mean is exact. The same on all ranks and on every device.
  bool stochastic_rounding = false;

  bool operator==(const MixedPrecisionPolicy&) const = default;
};

// What an optimizer's step has done: nothing, because more micro-batches follow; nothing, because a
// gradient was not finite; an update.
enum class StepOutcome { accumulating, skipped, stepped };

// Everything that a scaler goes on from.
using ScalerState = std::map<std::string, double>;

// A step that was skipped.
struct Overflow {
  double scale = 0;       // that the loss had
  std::string parameter;  // the first whose gradient is not finite
};

// The loss scale, and gradients that carry it. The scale is always finite and above 0: what would
// make it otherwise leaves it at the last value that float32 holds without loss.
//
// Between two updates each optimizer is unscaled once and steps once. Gradients that were averaged
// over ranks are bit-equal, so every rank comes to the same verdict without a message. Not to be
// used by several threads at once.
class LossScaler {
 public:
  virtual ~LossScaler() = default;

  double get_scale() const noexcept { return scale_; }

  // loss * scale, in the loss's type but for 16 bits, which become float32.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients of the optimizer's parameters by the scale, in place, and looks for
  // values that are not finite in the same pass.
  // Throws std::invalid_argument if it has been done since the last update(), or a gradient is
  // float16 (its small values are lost already; keep parameters in float32, autocast converts).
  void unscale_(torch::optim::Optimizer& optimizer);

  // unscale_() unless done. True if every gradient is finite, so that the optimizer may step.
  // Throws std::invalid_argument if it was asked since the last update(), or as unscale_() does.
  bool may_step(torch::optim::Optimizer& optimizer);

  // optimizer.step() if may_step().
  StepOutcome step(torch::optim::Optimizer& optimizer);

  // Whether gradients were looked at since the last update().
  bool is_due() const noexcept { return !seen_.empty(); }
  bool has_unscaled(const torch::optim::Optimizer& optimizer) const;

  // Sets the scale for the next step by what the optimizers' gradients were: once a step, however
  // many optimizers share the scaler.
  // Throws std::invalid_argument if no gradients were looked at since the last one.
  void update();

  // Of the last step that was skipped.
  const std::optional<Overflow>& last_overflow() const noexcept { return overflow_; }

  // How messages call a parameter; by default by its place in the optimizer.
  void set_names(std::function<std::string(const at::Tensor&)> name_of) {
    name_of_ = std::move(name_of);
  }

  // The scale, and what the class decides by, under the names of torch.amp where it has one.
  virtual ScalerState state_dict() const;
  // Throws std::invalid_argument that names a key that is missing, unknown or out of range; then
  // nothing has changed.
  void load_state_dict(const ScalerState& state);

 protected:
  explicit LossScaler(double init_scale);

  void set_scale(double scale) noexcept;
  // The scale after a step; found_inf: a gradient was not finite.
  virtual void advance(bool found_inf) = 0;
  // Takes values that state_dict() gave, checked for their names only. Throws as the constructor.
  virtual void restore(const ScalerState& state) = 0;

 private:
  struct Seen {
    bool found_inf = false;
    bool has_stepped = false;
  };

  double scale_ = 1;
  std::unordered_map<const torch::optim::Optimizer*, Seen> seen_;
  std::optional<Overflow> overflow_;
  std::function<std::string(const at::Tensor&)> name_of_;
};

struct GradScalerOptions {
  double init_scale = 65536;       // > 0
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // above 0, below 1
  int64_t growth_interval = 2000;  // > 0: clean steps in a row until the scale grows
};

// torch.amp.GradScaler's rule: every overflow backs off, growth_interval clean steps grow.
class GradScaler final : public LossScaler {
 public:
  // Throws std::invalid_argument if an option is out of range.
  explicit GradScaler(const GradScalerOptions& options = {});
  ScalerState state_dict() const override;

 protected:
  void advance(bool found_inf) override;
  void restore(const ScalerState& state) override;

 private:
  GradScalerOptions options_;
  int64_t growth_tracker_ = 0;
};

struct DynamicGradScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 1000;
  int64_t hysteresis = 2;                          // >= 0: overflows it takes to back off
  std::optional<double> min_scale = std::nullopt;  // > 0, at most initial_scale
  std::optional<double> max_scale = std::nullopt;  // at least initial_scale
};

// ColossalAI's rule: the scale backs off once `hysteresis` overflows have come since it last grew,
// and at each one after that, within bounds.
class DynamicGradScaler final : public LossScaler {
 public:
  explicit DynamicGradScaler(const DynamicGradScalerOptions& options = {});
  ScalerState state_dict() const override;

 protected:
  void advance(bool found_inf) override;
  void restore(const ScalerState& state) override;

 private:
  DynamicGradScalerOptions options_;
  int64_t growth_step_ = 0, hysteresis_step_ = 0;
};

// One scale for good; overflows still skip the step.
class ConstantGradScaler final : public LossScaler {
 public:
  explicit ConstantGradScaler(double scale) : LossScaler(scale) {}

 protected:
  void advance(bool) override {}
  void restore(const ScalerState& state) override;
};

}  // namespace drivetrain
