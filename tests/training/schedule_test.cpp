// SPDX-License-Identifier: Apache-2.0
// The values of learning-rate schedules against those recorded from Python, and their resumption.
#include <drivetrain/schedule.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "training/schedule_cases.h"

namespace drivetrain {
namespace {

using Rates = std::map<std::string, double>;

class ScheduleValues : public testing::TestWithParam<ScheduleCase> {};

// What the optimizer has before the first step and after each.
std::vector<Rates> trace(const ScheduleCase& schedule) {
  const auto optimizer = make_optimizer(schedule.optimizer, schedule.lrs);
  const auto scheduler = schedule.make(*optimizer, {});
  std::vector<Rates> all = {rates(*optimizer)};
  for (int64_t i = 1; i <= kRecordedSteps; ++i) {
    step(schedule, *scheduler, i);
    all.push_back(rates(*optimizer));
  }
  return all;
}

void set_lrs(torch::optim::Optimizer& optimizer, const std::vector<double>& lrs) {
  for (size_t i = 0; i < lrs.size(); ++i) optimizer.param_groups()[i].options().set_lr(lrs[i]);
}

TEST_P(ScheduleValues, EqualThoseRecorded) {
  const auto ours = trace(GetParam());
  const auto& recorded = recorded_schedules().at(GetParam().name);
  ASSERT_TRUE(recorded.contains("lr0") && recorded.contains("lr1"));
  for (const auto& [series, values] : recorded) {
    ASSERT_EQ(values.size(), ours.size());
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(ours[i].at(series), values[i], 1e-12 * std::abs(values[i]))
          << series << " after step " << i;
  }
  for (const char* momentum : {"momentum0", "momentum1"})
    if (!recorded.contains(momentum)) {
      EXPECT_EQ(ours.front().at(momentum), ours.back().at(momentum));
    }
}

// Into a schedule made on an optimizer as it is made anew, or as it is loaded from a file.
TEST_P(ScheduleValues, GoOnWithTheSameBitsFromAState) {
  const auto expected = trace(GetParam());
  const auto before = make_optimizer(GetParam().optimizer, GetParam().lrs);
  const auto saved = GetParam().make(*before, {});
  for (int64_t at = 0; at < kRecordedSteps; ++at) {
    if (at > 0) step(GetParam(), *saved, at);
    if (at % 23 != 0 && at != 1 && at != 10 && at != 50) continue;
    const auto after = make_optimizer(GetParam().optimizer, GetParam().lrs);
    if (at % 2 == 0) set_lrs(*after, saved->get_last_lr());
    const auto resumed = GetParam().make(*after, {});
    resumed->load_state_dict(saved->state_dict());
    EXPECT_EQ(resumed->state_dict(), saved->state_dict());
    for (int64_t i = at; i <= kRecordedSteps; ++i) {
      if (i > at) step(GetParam(), *resumed, i);
      ASSERT_EQ(rates(*after), expected[i]) << "step " << i << ", saved at step " << at;
    }
    EXPECT_EQ(resumed->last_epoch(), kRecordedSteps);
  }
}

TEST_P(ScheduleValues, StartAtAnyEpoch) {
  if (GetParam().sign != 0) return;                          // its epochs depend on metrics
  if (GetParam().name == "sequential_cyclic_first") return;  // takes initial lrs of its own
  const auto expected = trace(GetParam());
  for (const int64_t at : {0, 1, 30, 60, 199}) {
    const auto optimizer = make_optimizer(GetParam().optimizer, GetParam().lrs);
    set_lrs(*optimizer, {3, 4});
    const auto schedule =
        GetParam().make(*optimizer, {.initial_lrs = GetParam().lrs, .last_epoch = at});
    EXPECT_EQ(schedule->last_epoch(), at + 1);
    EXPECT_EQ(rates(*optimizer), expected[at + 1]);
    if (at + 2 > kRecordedSteps) continue;
    schedule->step();
    EXPECT_EQ(rates(*optimizer), expected[at + 2]);
  }
}

TEST_P(ScheduleValues, AreToldByGetLastLr) {
  const auto optimizer = make_optimizer(GetParam().optimizer, GetParam().lrs);
  const auto schedule = GetParam().make(*optimizer, {});
  for (int64_t i = 1; i < kRecordedSteps; ++i) {
    const auto now = rates(*optimizer);
    EXPECT_EQ(schedule->get_last_lr(), (std::vector<double>{now.at("lr0"), now.at("lr1")}));
    EXPECT_EQ(schedule->last_epoch(), i - 1);
    step(GetParam(), *schedule, i);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedule, ScheduleValues, testing::ValuesIn(schedule_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Schedule, EveryRecordedOneIsTested) {
  std::vector<std::string> recorded, tested;
  for (const auto& [name, series] : recorded_schedules()) recorded.push_back(name);
  for (const auto& schedule : schedule_cases()) tested.push_back(schedule.name);
  std::ranges::sort(tested);
  EXPECT_EQ(tested, recorded);
}

}  // namespace
}  // namespace drivetrain
