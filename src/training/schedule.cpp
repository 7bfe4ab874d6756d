// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/schedule.h>

#include "training/schedule_checks.h"

namespace drivetrain {

using training::finite_numbers;
using training::whole_number;

namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

std::vector<double> lrs_of(const Groups& groups) {
  std::vector<double> lrs;
  for (const auto& group : groups) lrs.push_back(group.options().get_lr());
  return lrs;
}

void set_lrs(Groups& groups, const std::vector<double>& lrs) {
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(lrs[i]);
}

}  // namespace

torch::optim::Optimizer& OptimizerRef::get() const {
  if (optimizer_) return *optimizer_;
  if (const auto place = place_.lock()) return **place;
  training::refuse(
      "the prepared optimizer of a learning-rate schedule is gone; keep it while the schedule is "
      "used");
}

LRScheduler::LRScheduler(std::string name, OptimizerRef optimizer, const ScheduleStart& start)
    : name_(std::move(name)),
      optimizer_(std::move(optimizer)),
      last_lr_(lrs_of(optimizer_.get().param_groups())) {
  training::require_whole(name_, "last_epoch", start.last_epoch, -1);
  if (start.last_epoch >= 0 && start.initial_lrs.empty())
    refuse(core::str("initial_lrs is empty with last_epoch ", start.last_epoch,
                     "; allowed: a value a parameter group; give those of the first epoch"));
  initial_lrs_ =
      start.initial_lrs.empty()
          ? last_lr_
          : training::for_each_group(name_, "initial_lrs", start.initial_lrs, last_lr_.size());
  base_lrs_ = initial_lrs_;
}

void LRScheduler::start(const ScheduleStart& start) {
  if (start.last_epoch >= 0) set_lrs(groups(), initial_lrs_);
  begin();
  for (int64_t epoch = 0; epoch <= start.last_epoch; ++epoch) advance();
}

double LRScheduler::lr_at(size_t /*group*/, double lr, int64_t /*epoch*/) const { return lr; }

double LRScheduler::lr_after(size_t group, double /*lr*/) const {
  return lr_at(group, base_lrs_[group], 0);
}

void LRScheduler::on_epoch(int64_t /*epoch*/) {}

void LRScheduler::begin() {
  std::vector<double> lrs = lrs_of(groups());
  for (size_t i = 0; i < lrs.size(); ++i) lrs[i] = lr_at(i, lrs[i], 0);
  enter(0, lrs);
}

void LRScheduler::hand_over() {
  if (!parts_.empty()) {
    set_lrs(groups(), base_lrs_);
    return begin();
  }
  std::vector<double> lrs = lrs_of(groups());
  for (size_t i = 0; i < lrs.size(); ++i) lrs[i] = lr_after(i, lrs[i]);
  enter(0, lrs);
}

void LRScheduler::advance() {
  std::vector<double> lrs = lrs_of(groups());
  for (size_t i = 0; i < lrs.size(); ++i) lrs[i] = lr_at(i, lrs[i], last_epoch_ + 1);
  enter(last_epoch_ + 1, lrs);
}

void LRScheduler::advance_by(double metric) {
  refuse(core::str("step() was given the metric ", metric,
                   "; allowed: none, except for ReduceLROnPlateau; call step()"));
}

void LRScheduler::enter(int64_t epoch, const std::vector<double>& lrs) {
  for (size_t i = 0; i < lrs.size(); ++i)
    if (!std::isfinite(lrs[i]))
      refuse(core::str("the learning rate of group ", i, " would be ", lrs[i], " in epoch ", epoch,
                       "; allowed: finite numbers; nothing was changed"));
  set_lrs(groups(), lrs);
  last_lr_ = lrs;
  last_epoch_ = epoch;
  on_epoch(epoch);
}

void LRScheduler::add_parts(const std::vector<ScheduleSpec>& specs, const ScheduleStart& start) {
  if (specs.empty()) refuse("schedulers is empty; allowed: one schedule or more; add one");
  std::vector<double> initial = start.initial_lrs;
  for (size_t i = 0; i < specs.size(); ++i) {
    auto part = specs[i].make(optimizer_, {.initial_lrs = initial});
    if (&part->optimizer() != &optimizer())
      refuse(core::str("schedulers[", i, "] is on another optimizer; allowed: the one that it is ",
                       "given; use that"));
    initial = part->initial_lrs_;
    parts_.push_back(std::move(part));
  }
  initial_lrs_ = base_lrs_ = initial;
  // Being made, the parts began one on the other: the whole begins them anew.
  set_lrs(groups(), last_lr_);
}

ScheduleState LRScheduler::state_dict() const {
  ScheduleState state;
  save("", state);
  return state;
}

void LRScheduler::load_state_dict(const ScheduleState& state) {
  const ScheduleState before = state_dict();
  training::require_shape_of(before, state, name_);
  auto& groups = this->groups();
  try {
    restore("", state);
  } catch (...) {
    restore("", before);
    throw;
  }
  set_lrs(groups, last_lr_);
  reapply();
}

void LRScheduler::save(const std::string& prefix, ScheduleState& state) const {
  state[prefix + "last_epoch"] = {static_cast<double>(last_epoch_)};
  state[prefix + "base_lrs"] = base_lrs_;
  state[prefix + "last_lr"] = last_lr_;
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->save(core::str(prefix, i, "."), state);
}

void LRScheduler::restore(const std::string& prefix, const ScheduleState& state) {
  last_epoch_ = whole_number(state, prefix + "last_epoch", prefix.empty() ? 0 : -1, name_);
  base_lrs_ = finite_numbers(state, prefix + "base_lrs", name_);
  last_lr_ = finite_numbers(state, prefix + "last_lr", name_);
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->restore(core::str(prefix, i, "."), state);
}

void LRScheduler::reapply() {
  if (last_epoch_ < 0) return;
  on_epoch(last_epoch_);
  for (const auto& part : parts_) part->reapply();
}

Groups& LRScheduler::groups() const {
  Groups& groups = optimizer().param_groups();
  if (groups.size() != last_lr_.size())
    refuse(core::str("the optimizer has ", groups.size(), " parameter group(s); allowed: ",
                     last_lr_.size(), ", as when the schedule was made; add groups before that"));
  return groups;
}

void LRScheduler::refuse(const std::string& message) const {
  training::refuse(core::str(name_, ": ", message));
}

}  // namespace drivetrain
