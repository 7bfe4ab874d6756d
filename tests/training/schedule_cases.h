// SPDX-License-Identifier: Apache-2.0
// The schedules that tests/golden/record_schedules.py has recorded, and what it recorded of them.
#pragma once

#include <drivetrain/schedule.h>

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace drivetrain {

constexpr int64_t kRecordedSteps = 200;

struct ScheduleCase {
  std::string name;
  std::function<std::unique_ptr<LRScheduler>(OptimizerRef, const ScheduleStart&)> make;
  std::string optimizer = "sgd";
  double sign = 0;  // of the metric; 0: none
  std::vector<double> lrs = {0.1, 0.02};
};
std::ostream& operator<<(std::ostream& out, const ScheduleCase& schedule);

std::vector<ScheduleCase> schedule_cases();

// "sgd", "rmsprop", "adam", "adamw" or "adagrad", of a group for each lr; its defaults have the
// first one.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        const std::vector<double>& lrs);

// Each group's lr and momentum, or betas[0]: "lr0", "momentum0", "lr1", ...
std::map<std::string, double> rates(torch::optim::Optimizer& optimizer);

// The step with that number, from 1, of a schedule.
void step(const ScheduleCase& schedule, LRScheduler& scheduler, int64_t number);

// By case, by the names of rates(): a value before the first step and after each. A momentum that
// does not change is not recorded.
using Recording = std::map<std::string, std::map<std::string, std::vector<double>>>;
const Recording& recorded_schedules();

}  // namespace drivetrain
