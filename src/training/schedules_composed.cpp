// SPDX-License-Identifier: Apache-2.0
// Schedules made of schedules.
#include <drivetrain/schedule.h>

#include <algorithm>

#include "training/schedule_checks.h"

namespace drivetrain {

SequentialLR::SequentialLR(OptimizerRef optimizer, SequentialLROptions options,
                           const ScheduleStart& start)
    : LRScheduler("SequentialLR", std::move(optimizer), start),
      milestones_(std::move(options.milestones)) {
  for (size_t i = 0; i < milestones_.size(); ++i)
    training::require_whole(name_, core::str("milestones[", i, "]"), milestones_[i],
                            i == 0 ? 0 : milestones_[i - 1]);
  add_parts(options.schedulers, start);
  if (milestones_.size() + 1 != parts_.size())
    refuse(core::str("there are ", milestones_.size(), " milestone(s) for ", parts_.size(),
                     " schedule(s); allowed: one fewer than schedules; correct them"));
  this->start(start);
}

LRScheduler& SequentialLR::part_at(int64_t epoch) const {
  return *parts_[std::ranges::upper_bound(milestones_, epoch) - milestones_.begin()];
}

void SequentialLR::begin() {
  for (size_t i = 0; i < base_lrs_.size(); ++i) groups()[i].options().set_lr(base_lrs_[i]);
  for (const auto& part : parts_) part->last_epoch_ = -1;
  LRScheduler& first = part_at(0);
  first.begin();
  enter(0, first.last_lr_);
}

void SequentialLR::advance() {
  LRScheduler& part = part_at(last_epoch_ + 1);
  if (&part == &part_at(last_epoch_))
    part.advance();
  else
    part.hand_over();
  enter(last_epoch_ + 1, part.last_lr_);
}

ChainedScheduler::ChainedScheduler(OptimizerRef optimizer, const ChainedSchedulerOptions& options,
                                   const ScheduleStart& start)
    : LRScheduler("ChainedScheduler", std::move(optimizer), start) {
  add_parts(options.schedulers, start);
  this->start(start);
}

void ChainedScheduler::begin() {
  for (const auto& part : parts_) part->begin();
  enter(0, parts_.back()->last_lr_);
}

void ChainedScheduler::advance() {
  for (const auto& part : parts_) part->advance();
  enter(last_epoch_ + 1, parts_.back()->last_lr_);
}

}  // namespace drivetrain
