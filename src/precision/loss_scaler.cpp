// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/mul.h>
#include <drivetrain/precision.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/invalid_argument.h"
#include "core/log.h"
#include "core/text.h"
#include "precision/unscale.h"

namespace drivetrain {

using core::str;

namespace {

// Between them 1/scale is a normal number of float32, too.
constexpr double kSmallest = 0x1p-126;
constexpr double kLargest = 0x1p126;

[[noreturn]] void refuse(const std::string& message) { core::refuse("precision", message); }

void require(bool is_so, const char* option, double value, const char* allowed) {
  if (!is_so) refuse(str(option, " is ", value, "; allowed: ", allowed));
}

double checked_scale(const char* option, double scale) {
  require(scale >= kSmallest && scale <= kLargest, option, scale, "2^-126 to 2^126");
  return scale;
}

void check_factors(double growth, double backoff, int64_t interval) {
  require(growth > 1 && std::isfinite(growth), "growth_factor", growth, "above 1, and finite");
  require(backoff > 0 && backoff < 1, "backoff_factor", backoff, "above 0 and below 1");
  require(interval > 0, "growth_interval", static_cast<double>(interval), "1 or more");
}

// A count out of a state; NaN, fractions and what an int64_t does not hold exactly are none.
int64_t count_in(const ScalerState& state, const char* key) {
  const double value = state.at(key);
  require(value >= 0 && value <= 0x1p53 && value == std::floor(value), key, value,
          "a whole number from 0");
  return static_cast<int64_t>(value);
}

struct Gradients {
  std::vector<at::Tensor> parameters, gradients;
};

Gradients gradients_of(torch::optim::Optimizer& optimizer) {
  Gradients all;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      all.parameters.push_back(parameter);
      all.gradients.push_back(parameter.grad());
    }
  return all;
}

std::string place_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g)
    for (size_t i = 0; i < groups[g].params().size(); ++i)
      if (groups[g].params()[i].is_same(parameter))
        return core::str("parameter ", i, " of group ", g, " of shape ", parameter.sizes());
  return "a parameter";
}

}  // namespace

LossScaler::LossScaler(double init_scale) {
  set_scale(checked_scale("the loss scale", init_scale));
}

void LossScaler::set_scale(double scale) noexcept {
  // As torch.amp, which keeps it in float32.
  scale_ = std::clamp(static_cast<double>(static_cast<float>(scale)), kSmallest, kLargest);
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  const bool is_reduced = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  return at::mul(is_reduced ? loss.to(at::kFloat) : loss, scale_);
}

void LossScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (has_unscaled(optimizer))
    refuse("unscale_() was called twice for one optimizer; allowed: once between two update()s");
  const Gradients all = gradients_of(optimizer);
  const auto name = [&](const at::Tensor& parameter) {
    const std::string known = name_of_ ? name_of_(parameter) : "";
    return known.empty() ? place_of(optimizer, parameter) : known;
  };
  for (size_t i = 0; i < all.gradients.size(); ++i)
    if (all.gradients[i].scalar_type() == at::kHalf)
      refuse(str("the gradient of ", name(all.parameters[i]),
                 " is float16, where small values are lost before the scale is taken off; allowed: "
                 "parameters in float32, which autocast converts"));
  const auto first = precision::unscale(all.gradients, scale_);
  seen_[&optimizer].found_inf = first.has_value();
  if (!first) return;
  overflow_ = Overflow{scale_, name(all.parameters[*first])};
  core::log_info(str("a step is skipped: the gradient of ", overflow_->parameter,
                     " is not finite at a loss scale of ", scale_));
}

bool LossScaler::has_unscaled(const torch::optim::Optimizer& optimizer) const {
  return seen_.contains(&optimizer);
}

bool LossScaler::may_step(torch::optim::Optimizer& optimizer) {
  if (!has_unscaled(optimizer)) unscale_(optimizer);
  Seen& seen = seen_[&optimizer];
  if (seen.has_stepped)
    refuse(
        "an optimizer stepped twice on gradients of one scale; allowed: one step between two "
        "update()s; run backward again first");
  seen.has_stepped = true;
  return !seen.found_inf;
}

StepOutcome LossScaler::step(torch::optim::Optimizer& optimizer) {
  if (!may_step(optimizer)) return StepOutcome::skipped;
  optimizer.step();
  return StepOutcome::stepped;
}

void LossScaler::update() {
  if (seen_.empty())
    refuse("update() without a step since the last one; allowed: after unscale_() or step()");
  advance(std::any_of(seen_.begin(), seen_.end(),
                      [](const auto& entry) { return entry.second.found_inf; }));
  seen_.clear();
}

ScalerState LossScaler::state_dict() const { return {{"scale", scale_}}; }

void LossScaler::load_state_dict(const ScalerState& state) {
  const ScalerState known = state_dict();
  for (const auto& [key, value] : known)
    if (!state.contains(key)) refuse(str("the state has no \"", key, "\"; allowed: one of ours"));
  for (const auto& [key, value] : state)
    if (!known.contains(key))
      refuse(str("the state has \"", key,
                 "\", which this scaler does not know; allowed: the state ",
                 "of a scaler of the same class"));
  const double scale = checked_scale("scale", state.at("scale"));
  restore(state);
  scale_ = scale;
  seen_.clear();
}

GradScaler::GradScaler(const GradScalerOptions& options)
    : LossScaler(options.init_scale), options_(options) {
  check_factors(options.growth_factor, options.backoff_factor, options.growth_interval);
}

void GradScaler::advance(bool found_inf) {
  if (found_inf) {
    set_scale(get_scale() * options_.backoff_factor);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ >= options_.growth_interval) {
    set_scale(get_scale() * options_.growth_factor);
    growth_tracker_ = 0;
  }
}

ScalerState GradScaler::state_dict() const {
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", static_cast<double>(options_.growth_interval)},
          {"_growth_tracker", static_cast<double>(growth_tracker_)}};
}

void GradScaler::restore(const ScalerState& state) {
  GradScalerOptions options = options_;
  options.growth_factor = state.at("growth_factor");
  options.backoff_factor = state.at("backoff_factor");
  options.growth_interval = count_in(state, "growth_interval");
  check_factors(options.growth_factor, options.backoff_factor, options.growth_interval);
  const int64_t tracker = count_in(state, "_growth_tracker");
  options_ = options;
  growth_tracker_ = tracker;
}

namespace {

void check(const DynamicGradScalerOptions& options, double scale) {
  check_factors(options.growth_factor, options.backoff_factor, options.growth_interval);
  require(options.hysteresis >= 0, "hysteresis", static_cast<double>(options.hysteresis),
          "0 or more");
  if (options.min_scale)
    require(*options.min_scale >= kSmallest && *options.min_scale <= scale, "min_scale",
            *options.min_scale, "2^-126 to the scale");
  if (options.max_scale)
    require(*options.max_scale >= scale && *options.max_scale <= kLargest, "max_scale",
            *options.max_scale, "the scale to 2^126");
}

}  // namespace

DynamicGradScaler::DynamicGradScaler(const DynamicGradScalerOptions& options)
    : LossScaler(options.initial_scale), options_(options) {
  check(options, options.initial_scale);
}

void DynamicGradScaler::advance(bool found_inf) {
  if (found_inf) {
    ++hysteresis_step_;
    growth_step_ = 0;
    if (hysteresis_step_ >= options_.hysteresis)
      set_scale(std::max(get_scale() * options_.backoff_factor, options_.min_scale.value_or(0)));
    return;
  }
  if (++growth_step_ < options_.growth_interval) return;
  growth_step_ = hysteresis_step_ = 0;
  set_scale(std::min(get_scale() * options_.growth_factor,
                     options_.max_scale.value_or(std::numeric_limits<double>::infinity())));
}

// A bound that is not there is 0, which none can be.
ScalerState DynamicGradScaler::state_dict() const {
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", static_cast<double>(options_.growth_interval)},
          {"hysteresis", static_cast<double>(options_.hysteresis)},
          {"min_scale", options_.min_scale.value_or(0)},
          {"max_scale", options_.max_scale.value_or(0)},
          {"growth_step", static_cast<double>(growth_step_)},
          {"hysteresis_step", static_cast<double>(hysteresis_step_)}};
}

void DynamicGradScaler::restore(const ScalerState& state) {
  const auto bound = [&](const char* key) {
    const double value = state.at(key);
    return value == 0 ? std::nullopt : std::optional(value);
  };
  DynamicGradScalerOptions options = options_;
  options.growth_factor = state.at("growth_factor");
  options.backoff_factor = state.at("backoff_factor");
  options.growth_interval = count_in(state, "growth_interval");
  options.hysteresis = count_in(state, "hysteresis");
  options.min_scale = bound("min_scale");
  options.max_scale = bound("max_scale");
  check(options, state.at("scale"));
  const int64_t growth = count_in(state, "growth_step");
  const int64_t hysteresis = count_in(state, "hysteresis_step");
  options_ = options;
  growth_step_ = growth;
  hysteresis_step_ = hysteresis;
}

void ConstantGradScaler::restore(const ScalerState&) {}

}  // namespace drivetrain
