// SPDX-License-Identifier: Apache-2.0
// What the options and states of learning-rate schedules have to be. `schedule` is the class or
// function that refuses.
#pragma once

#include <drivetrain/schedule.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"
#include "training/refuse.h"

namespace drivetrain::training {

template <class Value>
void require(bool holds, std::string_view schedule, std::string_view option, const Value& value,
             std::string_view allowed) {
  if (holds) return;
  refuse(core::str(schedule, ": ", option, " is ", value, "; allowed: ", allowed, "; correct it"));
}

inline void require_whole(std::string_view schedule, std::string_view option, int64_t value,
                          int64_t least) {
  require(value >= least, schedule, option, value, core::str(least, " or more"));
}

inline bool is_not_negative(double value) { return value >= 0 && std::isfinite(value); }
inline bool is_positive(double value) { return value > 0 && std::isfinite(value); }

inline void require_not_negative(std::string_view schedule, std::string_view option, double value) {
  require(is_not_negative(value), schedule, option, value, "finite numbers, 0 or more");
}

// A value a group, each 0 or more, out of as many or of one for all.
std::vector<double> for_each_group(std::string_view schedule, std::string_view option,
                                   const std::vector<double>& values, size_t num_groups);
std::vector<LrLambda> for_each_group(std::string_view schedule, const std::vector<LrLambda>& values,
                                     size_t num_groups);

// Refuses a state with other keys than `expected`, or other numbers of values under them.
void require_shape_of(const ScheduleState& expected, const ScheduleState& state,
                      std::string_view schedule);

// What a state has under `key`, which is there.
int64_t whole_number(const ScheduleState& state, const std::string& key, int64_t least,
                     std::string_view schedule);
std::vector<double> finite_numbers(const ScheduleState& state, const std::string& key,
                                   std::string_view schedule);

}  // namespace drivetrain::training
