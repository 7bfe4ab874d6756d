// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/schedule.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "training/schedule_checks.h"

namespace drivetrain {

using training::require_not_negative;
using training::require_whole;

ReduceLROnPlateau::ReduceLROnPlateau(OptimizerRef optimizer, ReduceLROnPlateauOptions options)
    : LRScheduler("ReduceLROnPlateau", std::move(optimizer)), options_(std::move(options)) {
  auto& o = options_;
  training::require(o.factor >= 0 && o.factor < 1, name_, "factor", o.factor, "0 up to below 1");
  require_whole(name_, "patience", o.patience, 0);
  require_not_negative(name_, "threshold", o.threshold);
  require_whole(name_, "cooldown", o.cooldown, 0);
  o.min_lr = training::for_each_group(name_, "min_lr", o.min_lr, groups().size());
  require_not_negative(name_, "eps", o.eps);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  best_ = o.mode == PlateauMode::min ? kInfinity : -kInfinity;
  start({});
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == ThresholdMode::rel;
  const double threshold = options_.threshold;
  if (options_.mode == PlateauMode::min)
    return metric < (relative ? best_ * (1.0 - threshold) : best_ - threshold);
  return metric > (relative ? best_ * (1.0 + threshold) : best_ + threshold);
}

void ReduceLROnPlateau::advance() {
  refuse("step() was given no metric; allowed: a finite number; call step(validation_loss)");
}

void ReduceLROnPlateau::advance_by(double metric) {
  if (!std::isfinite(metric))
    refuse(core::str("the metric is ", metric, "; allowed: finite numbers; skip this step"));
  const bool better = is_better(metric);
  int64_t bad = better || cooldown_counter_ > 0 ? 0 : num_bad_epochs_ + 1;
  int64_t cooldown = std::max<int64_t>(0, cooldown_counter_ - 1);
  std::vector<double> lrs;
  for (const auto& group : groups()) lrs.push_back(group.options().get_lr());
  if (bad > options_.patience) {
    for (size_t i = 0; i < lrs.size(); ++i) {
      const double reduced = std::max(lrs[i] * options_.factor, options_.min_lr[i]);
      if (lrs[i] - reduced > options_.eps) lrs[i] = reduced;
    }
    cooldown = options_.cooldown;
    bad = 0;
  }
  enter(last_epoch_ + 1, lrs);
  if (better) best_ = metric;
  num_bad_epochs_ = bad;
  cooldown_counter_ = cooldown;
}

void ReduceLROnPlateau::save(const std::string& prefix, ScheduleState& state) const {
  LRScheduler::save(prefix, state);
  state[prefix + "best"] = {best_};
  state[prefix + "num_bad_epochs"] = {static_cast<double>(num_bad_epochs_)};
  state[prefix + "cooldown_counter"] = {static_cast<double>(cooldown_counter_)};
}

void ReduceLROnPlateau::restore(const std::string& prefix, const ScheduleState& state) {
  LRScheduler::restore(prefix, state);
  best_ = state.at(prefix + "best").at(0);
  training::require(!std::isnan(best_), name_, "\"best\" of the state", best_, "numbers");
  num_bad_epochs_ = training::whole_number(state, prefix + "num_bad_epochs", 0, name_);
  cooldown_counter_ = training::whole_number(state, prefix + "cooldown_counter", 0, name_);
}

}  // namespace drivetrain
