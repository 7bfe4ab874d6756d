// SPDX-License-Identifier: Apache-2.0
#include "training/schedule_checks.h"

namespace drivetrain::training {
namespace {

template <class Value>
std::vector<Value> spread(std::string_view schedule, std::string_view option,
                          const std::vector<Value>& values, size_t num_groups) {
  if (values.size() == num_groups) return values;
  if (values.size() == 1) return std::vector<Value>(num_groups, values[0]);
  refuse(core::str(schedule, ": ", option, " has ", values.size(), " value(s); allowed: ",
                   num_groups, ", one a parameter group, or 1 for all; correct it"));
}

}  // namespace

std::vector<double> for_each_group(std::string_view schedule, std::string_view option,
                                   const std::vector<double>& values, size_t num_groups) {
  for (size_t i = 0; i < values.size(); ++i)
    require_not_negative(schedule, core::str(option, "[", i, "]"), values[i]);
  return spread(schedule, option, values, num_groups);
}

std::vector<LrLambda> for_each_group(std::string_view schedule, const std::vector<LrLambda>& values,
                                     size_t num_groups) {
  for (size_t i = 0; i < values.size(); ++i)
    require(values[i] != nullptr, schedule, core::str("lr_lambda[", i, "]"), "empty", "a function");
  return spread(schedule, "lr_lambda", values, num_groups);
}

void require_shape_of(const ScheduleState& expected, const ScheduleState& state,
                      std::string_view schedule) {
  constexpr auto kAdvice = "; nothing was loaded; load the state of a schedule made as this one";
  for (const auto& [key, values] : state)
    if (!expected.contains(key))
      refuse(core::str(schedule, ": the state has an unknown entry \"", key, "\"", kAdvice));
  for (const auto& [key, values] : expected) {
    const auto found = state.find(key);
    if (found == state.end())
      refuse(core::str(schedule, ": the state has no entry \"", key, "\"", kAdvice));
    if (found->second.size() != values.size())
      refuse(core::str(schedule, ": \"", key, "\" of the state has ", found->second.size(),
                       " value(s); allowed: ", values.size(), kAdvice));
  }
}

int64_t whole_number(const ScheduleState& state, const std::string& key, int64_t least,
                     std::string_view schedule) {
  constexpr double kMost = 1LL << 53;  // all whole numbers to here are doubles
  const double value = state.at(key).at(0);
  const bool holds =
      value >= static_cast<double>(least) && value <= kMost && std::trunc(value) == value;
  require(holds, schedule, core::str("\"", key, "\" of the state"), value,
          core::str("whole numbers, ", least, " or more"));
  return static_cast<int64_t>(value);
}

std::vector<double> finite_numbers(const ScheduleState& state, const std::string& key,
                                   std::string_view schedule) {
  for (const double value : state.at(key))
    require(std::isfinite(value), schedule, core::str("\"", key, "\" of the state"), value,
            "finite numbers");
  return state.at(key);
}

}  // namespace drivetrain::training
