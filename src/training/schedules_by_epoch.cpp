// SPDX-License-Identifier: Apache-2.0
// Schedules whose learning rate follows from the epoch, and the rate before. Most are in the
// recursive form, so that they leave alone what others do to the rate.
#include <drivetrain/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "training/schedule_checks.h"

namespace drivetrain {

using std::numbers::pi;
using training::require;
using training::require_not_negative;
using training::require_whole;

LambdaLR::LambdaLR(OptimizerRef optimizer, const LambdaLROptions& options,
                   const ScheduleStart& start)
    : LRScheduler("LambdaLR", std::move(optimizer), start),
      lr_lambda_(training::for_each_group("LambdaLR", options.lr_lambda, groups().size())) {
  this->start(start);
}

double LambdaLR::lr_at(size_t group, double /*lr*/, int64_t epoch) const {
  return base_lrs()[group] * lr_lambda_[group](epoch);
}

MultiplicativeLR::MultiplicativeLR(OptimizerRef optimizer, const MultiplicativeLROptions& options,
                                   const ScheduleStart& start)
    : LRScheduler("MultiplicativeLR", std::move(optimizer), start),
      lr_lambda_(training::for_each_group("MultiplicativeLR", options.lr_lambda, groups().size())) {
  this->start(start);
}

double MultiplicativeLR::lr_at(size_t group, double lr, int64_t epoch) const {
  return epoch == 0 ? lr : lr * lr_lambda_[group](epoch);
}

double MultiplicativeLR::lr_after(size_t group, double lr) const {
  return lr * lr_lambda_[group](0);
}

StepLR::StepLR(OptimizerRef optimizer, StepLROptions options, const ScheduleStart& start)
    : LRScheduler("StepLR", std::move(optimizer), start), options_(options) {
  require_whole("StepLR", "step_size", options_.step_size, 1);
  require_not_negative("StepLR", "gamma", options_.gamma);
  this->start(start);
}

double StepLR::lr_at(size_t /*group*/, double lr, int64_t epoch) const {
  return epoch == 0 || epoch % options_.step_size != 0 ? lr : lr * options_.gamma;
}

MultiStepLR::MultiStepLR(OptimizerRef optimizer, MultiStepLROptions options,
                         const ScheduleStart& start)
    : LRScheduler("MultiStepLR", std::move(optimizer), start), options_(std::move(options)) {
  for (size_t i = 0; i < options_.milestones.size(); ++i)
    require_whole("MultiStepLR", core::str("milestones[", i, "]"), options_.milestones[i], 0);
  require_not_negative("MultiStepLR", "gamma", options_.gamma);
  this->start(start);
}

double MultiStepLR::lr_at(size_t /*group*/, double lr, int64_t epoch) const {
  const auto times = std::ranges::count(options_.milestones, epoch);
  return times == 0 ? lr : lr * std::pow(options_.gamma, times);
}

ConstantLR::ConstantLR(OptimizerRef optimizer, ConstantLROptions options,
                       const ScheduleStart& start)
    : LRScheduler("ConstantLR", std::move(optimizer), start), options_(options) {
  require(options_.factor >= 0 && options_.factor <= 1, "ConstantLR", "factor", options_.factor,
          "0 to 1");
  require_whole("ConstantLR", "total_iters", options_.total_iters, 1);
  this->start(start);
}

double ConstantLR::lr_at(size_t group, double lr, int64_t epoch) const {
  if (epoch == 0) return lr * options_.factor;
  if (epoch != options_.total_iters) return lr;
  // From 0 there is no way back by multiplication.
  return options_.factor == 0 ? base_lrs()[group] : lr * (1.0 / options_.factor);
}

LinearLR::LinearLR(OptimizerRef optimizer, LinearLROptions options, const ScheduleStart& start)
    : LRScheduler("LinearLR", std::move(optimizer), start), options_(options) {
  require(options_.start_factor > 0 && options_.start_factor <= 1, "LinearLR", "start_factor",
          options_.start_factor, "above 0, up to 1");
  require(options_.end_factor >= 0 && options_.end_factor <= 1, "LinearLR", "end_factor",
          options_.end_factor, "0 to 1");
  require_whole("LinearLR", "total_iters", options_.total_iters, 1);
  this->start(start);
}

double LinearLR::lr_at(size_t /*group*/, double lr, int64_t epoch) const {
  const auto& [first, last, iters] = options_;
  if (epoch == 0) return lr * first;
  if (epoch > iters) return lr;
  const double rise = last - first;
  return lr * (1.0 + rise / (iters * first + (epoch - 1) * rise));
}

ExponentialLR::ExponentialLR(OptimizerRef optimizer, ExponentialLROptions options,
                             const ScheduleStart& start)
    : LRScheduler("ExponentialLR", std::move(optimizer), start), options_(options) {
  require_not_negative("ExponentialLR", "gamma", options_.gamma);
  this->start(start);
}

double ExponentialLR::lr_at(size_t /*group*/, double lr, int64_t epoch) const {
  return epoch == 0 ? lr : lr * options_.gamma;
}

PolynomialLR::PolynomialLR(OptimizerRef optimizer, PolynomialLROptions options,
                           const ScheduleStart& start)
    : LRScheduler("PolynomialLR", std::move(optimizer), start), options_(options) {
  require_whole("PolynomialLR", "total_iters", options_.total_iters, 1);
  require_not_negative("PolynomialLR", "power", options_.power);
  this->start(start);
}

double PolynomialLR::lr_at(size_t /*group*/, double lr, int64_t epoch) const {
  if (epoch == 0 || epoch > options_.total_iters) return lr;
  const double iters = static_cast<double>(options_.total_iters);
  return lr * std::pow((1.0 - epoch / iters) / (1.0 - (epoch - 1) / iters), options_.power);
}

CosineAnnealingLR::CosineAnnealingLR(OptimizerRef optimizer, CosineAnnealingLROptions options,
                                     const ScheduleStart& start)
    : LRScheduler("CosineAnnealingLR", std::move(optimizer), start), options_(options) {
  require_whole("CosineAnnealingLR", "T_max", options_.T_max, 1);
  require_not_negative("CosineAnnealingLR", "eta_min", options_.eta_min);
  this->start(start);
}

double CosineAnnealingLR::lr_at(size_t group, double lr, int64_t epoch) const {
  if (epoch == 0) return lr;
  const auto& [half_period, least] = options_;
  // At the bottom the height is 0, so that the next one is no multiple of it.
  if ((epoch - 1 - half_period) % (2 * half_period) == 0)
    return lr + (base_lrs()[group] - least) * (1 - std::cos(pi / half_period)) / 2;
  return (1 + std::cos(pi * epoch / half_period)) / (1 + std::cos(pi * (epoch - 1) / half_period)) *
             (lr - least) +
         least;
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(OptimizerRef optimizer,
                                                         CosineAnnealingWarmRestartsOptions options,
                                                         const ScheduleStart& start)
    : LRScheduler("CosineAnnealingWarmRestarts", std::move(optimizer), start), options_(options) {
  constexpr auto kName = "CosineAnnealingWarmRestarts";
  require_whole(kName, "T_0", options_.T_0, 1);
  require_whole(kName, "T_mult", options_.T_mult, 1);
  require_not_negative(kName, "eta_min", options_.eta_min);
  this->start(start);
}

double CosineAnnealingWarmRestarts::lr_at(size_t group, double /*lr*/, int64_t epoch) const {
  int64_t since_restart = epoch, length = options_.T_0;
  if (options_.T_mult == 1) since_restart %= length;
  for (; since_restart >= length; length *= options_.T_mult) since_restart -= length;
  return options_.eta_min +
         (base_lrs()[group] - options_.eta_min) * (1 + std::cos(pi * since_restart / length)) / 2;
}

}  // namespace drivetrain
