// SPDX-License-Identifier: Apache-2.0
// Schedules that move the momentum against the learning rate.
#include <drivetrain/schedule.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <array>
#include <cmath>
#include <numbers>

#include "training/schedule_checks.h"

namespace drivetrain {

using training::for_each_group;
using training::is_positive;
using training::require;
using training::require_whole;

namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

// The betas of the classes that have them, else nothing.
std::tuple<double, double>* betas_of(OptimizerOptions& options) {
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return &adam->betas();
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return &adamw->betas();
  return nullptr;
}

// The number that a class calls momentum or that stands for it, if it has one.
double* momentum_of(OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return &sgd->momentum();
  if (auto* rms = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) return &rms->momentum();
  auto* betas = betas_of(options);
  return betas ? &std::get<0>(*betas) : nullptr;
}

void require_momentum(std::string_view schedule, std::vector<OptimizerParamGroup>& groups) {
  for (auto& group : groups)
    if (!momentum_of(group.options()))
      training::refuse(core::str(schedule,
                                 ": cycle_momentum is true, but the optimizer has neither momentum "
                                 "nor betas; allowed: SGD, RMSprop, Adam, AdamW; set "
                                 "cycle_momentum = false"));
}

// A momentum a group.
std::vector<double> momentums(std::string_view schedule, std::string_view option,
                              const std::vector<double>& values,
                              std::vector<OptimizerParamGroup>& groups) {
  auto all = for_each_group(schedule, option, values, groups.size());
  for (size_t i = 0; i < all.size(); ++i)
    require(all[i] < 1 || !betas_of(groups[i].options()), schedule, option, all[i],
            "below 1 for betas");
  return all;
}

void set_momentums(std::vector<OptimizerParamGroup>& groups, const std::vector<double>& values) {
  for (size_t i = 0; i < groups.size(); ++i) *momentum_of(groups[i].options()) = values[i];
}

int64_t total_steps_of(const OneCycleLROptions& options) {
  constexpr auto kName = "OneCycleLR";
  if (options.total_steps) {
    require_whole(kName, "total_steps", *options.total_steps, 1);
    return *options.total_steps;
  }
  if (!options.epochs || !options.steps_per_epoch)
    training::refuse(core::str(kName, ": the number of steps is not given; allowed: total_steps, ",
                               "or epochs and steps_per_epoch; set them"));
  require_whole(kName, "epochs", *options.epochs, 1);
  require_whole(kName, "steps_per_epoch", *options.steps_per_epoch, 1);
  return *options.epochs * *options.steps_per_epoch;
}

}  // namespace

OneCycleLR::OneCycleLR(OptimizerRef optimizer, OneCycleLROptions options,
                       const ScheduleStart& start)
    : LRScheduler("OneCycleLR", std::move(optimizer), start), options_(std::move(options)) {
  auto& o = options_;
  o.total_steps = total_steps_of(o);
  require(o.pct_start >= 0 && o.pct_start <= 1, name_, "pct_start", o.pct_start, "0 to 1");
  require(is_positive(o.div_factor), name_, "div_factor", o.div_factor, "finite, above 0");
  require(is_positive(o.final_div_factor), name_, "final_div_factor", o.final_div_factor,
          "finite, above 0");
  o.max_lr = for_each_group(name_, "max_lr", o.max_lr, groups().size());
  if (o.cycle_momentum) {
    require_momentum(name_, groups());
    o.base_momentum = momentums(name_, "base_momentum", o.base_momentum, groups());
    o.max_momentum = momentums(name_, "max_momentum", o.max_momentum, groups());
    set_momentums(groups(), o.max_momentum);
  }
  for (size_t i = 0; i < base_lrs_.size(); ++i) base_lrs_[i] = o.max_lr[i] / o.div_factor;
  initial_lrs_ = base_lrs_;
  this->start(start);
}

// Along `first`, `peak`, (`first`,) `last`, each reached at the end of a phase.
double OneCycleLR::anneal(int64_t epoch, double first, double peak, double last) const {
  const auto total = static_cast<double>(*options_.total_steps);
  const double pct = options_.pct_start;
  struct Phase {
    double end, from, to;
  };
  const auto phases = options_.three_phase ? std::vector<Phase>{{pct * total - 1, first, peak},
                                                                {2 * pct * total - 2, peak, first},
                                                                {total - 1, first, last}}
                                           : std::vector<Phase>{{pct * total - 1, first, peak},
                                                                {total - 1, peak, last}};
  size_t i = 0;
  double begin = 0;
  while (i + 1 < phases.size() && static_cast<double>(epoch) > phases[i].end)
    begin = phases[i++].end;
  const auto& [end, from, to] = phases[i];
  // A phase without length is at its end.
  const double done = end == begin ? 1 : (epoch - begin) / (end - begin);
  if (options_.anneal_strategy == AnnealStrategy::linear) return (to - from) * done + from;
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * done) + 1);
}

double OneCycleLR::lr_at(size_t group, double /*lr*/, int64_t epoch) const {
  if (epoch > *options_.total_steps)
    refuse(core::str("step ", epoch, " was called for; allowed: total_steps = ",
                     *options_.total_steps, "; give more of them, or stop stepping"));
  return anneal(epoch, base_lrs_[group], options_.max_lr[group],
                base_lrs_[group] / options_.final_div_factor);
}

void OneCycleLR::on_epoch(int64_t epoch) {
  if (!options_.cycle_momentum) return;
  std::vector<double> values;
  for (size_t i = 0; i < base_lrs_.size(); ++i) {
    const double high = options_.max_momentum[i];
    values.push_back(anneal(epoch, high, options_.base_momentum[i], high));
  }
  set_momentums(groups(), values);
}

void OneCycleLR::restore(const std::string& prefix, const ScheduleState& state) {
  LRScheduler::restore(prefix, state);
  if (last_epoch_ > *options_.total_steps)
    refuse(core::str("the state is of step ", last_epoch_, "; allowed: total_steps = ",
                     *options_.total_steps, "; make the schedule as long as it was"));
}

CyclicLR::CyclicLR(OptimizerRef optimizer, CyclicLROptions options, const ScheduleStart& start)
    : LRScheduler("CyclicLR", std::move(optimizer), start), options_(std::move(options)) {
  auto& o = options_;
  o.base_lr = for_each_group(name_, "base_lr", o.base_lr, groups().size());
  o.max_lr = for_each_group(name_, "max_lr", o.max_lr, groups().size());
  require_whole(name_, "step_size_up", o.step_size_up, 1);
  require_whole(name_, "step_size_down", o.step_size_down.value_or(o.step_size_up), 0);
  training::require_not_negative(name_, "gamma", o.gamma);
  if (o.cycle_momentum) {
    require_momentum(name_, groups());
    o.base_momentum = momentums(name_, "base_momentum", o.base_momentum, groups());
    o.max_momentum = momentums(name_, "max_momentum", o.max_momentum, groups());
    set_momentums(groups(), o.max_momentum);
  }
  base_lrs_ = o.base_lr;
  if (start.initial_lrs.empty()) initial_lrs_ = base_lrs_;
  this->start(start);
}

// From `from` at the ends of a cycle to, at its peak, as much of the way to `to` as it is high.
double CyclicLR::towards(double from, double to, int64_t epoch) const {
  const auto up = static_cast<double>(options_.step_size_up);
  const double length = up + options_.step_size_down.value_or(options_.step_size_up);
  const double peak = up / length;
  const double cycle = std::floor(1 + epoch / length);
  const double x = 1.0 + epoch / length - cycle;
  const double part = x <= peak ? x / peak : (x - 1) / (peak - 1);
  double height = 1;
  if (options_.scale_fn)
    height = options_.scale_fn(options_.scale_mode == ScaleMode::cycle ? cycle : epoch);
  else if (options_.mode == CyclicMode::triangular2)
    height = 1 / std::pow(2.0, cycle - 1);
  else if (options_.mode == CyclicMode::exp_range)
    height = std::pow(options_.gamma, epoch);
  return from + (to - from) * part * height;
}

double CyclicLR::lr_at(size_t group, double /*lr*/, int64_t epoch) const {
  return towards(base_lrs_[group], options_.max_lr[group], epoch);
}

void CyclicLR::on_epoch(int64_t epoch) {
  if (!options_.cycle_momentum) return;
  std::vector<double> values;
  for (size_t i = 0; i < base_lrs_.size(); ++i)
    values.push_back(towards(options_.max_momentum[i], options_.base_momentum[i], epoch));
  set_momentums(groups(), values);
}

}  // namespace drivetrain
