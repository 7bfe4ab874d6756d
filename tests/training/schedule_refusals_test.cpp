// SPDX-License-Identifier: Apache-2.0
// What learning-rate schedules refuse, by the message; and that nothing has changed then.
#include <drivetrain/schedule.h>
#include <gtest/gtest.h>

#include <limits>

#include "expect_error.h"
#include "training/schedule_cases.h"

namespace drivetrain {
namespace {

#define EXPECT_REFUSED(statement, text) EXPECT_ERROR(statement, std::invalid_argument, text)

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double one(int64_t /*epoch*/) { return 1; }

class ScheduleRefusals : public testing::Test {
 protected:
  std::unique_ptr<torch::optim::Optimizer> owner_ = make_optimizer("sgd", {0.1, 0.02});
  torch::optim::Optimizer& optimizer_ = *owner_;
};

TEST_F(ScheduleRefusals, OfFunctions) {
  EXPECT_REFUSED(LambdaLR(optimizer_, {}),
                 "LambdaLR: lr_lambda has 0 value(s); allowed: 2, one a parameter group, or 1");
  EXPECT_REFUSED(LambdaLR(optimizer_, {.lr_lambda = {one, nullptr}}), "lr_lambda[1] is empty");
  EXPECT_REFUSED(MultiplicativeLR(optimizer_, {.lr_lambda = {one, one, one}}),
                 "MultiplicativeLR: lr_lambda has 3 value(s); allowed: 2");
}

TEST_F(ScheduleRefusals, OfSteps) {
  EXPECT_REFUSED(StepLR(optimizer_, {}), "StepLR: step_size is 0; allowed: 1 or more");
  EXPECT_REFUSED(StepLR(optimizer_, {.step_size = -3}), "step_size is -3");
  EXPECT_REFUSED(StepLR(optimizer_, {.step_size = 3, .gamma = kNan}), "StepLR: gamma is nan");
  EXPECT_REFUSED(MultiStepLR(optimizer_, {.milestones = {3, -1}}), "milestones[1] is -1");
  EXPECT_REFUSED(MultiStepLR(optimizer_, {.gamma = kInfinity}), "MultiStepLR: gamma is inf");
}

TEST_F(ScheduleRefusals, OfFactors) {
  EXPECT_REFUSED(ConstantLR(optimizer_, {.factor = 1.5}), "factor is 1.5; allowed: 0 to 1");
  EXPECT_REFUSED(ConstantLR(optimizer_, {.factor = kNan}), "ConstantLR: factor is nan");
  EXPECT_REFUSED(ConstantLR(optimizer_, {.total_iters = 0}), "ConstantLR: total_iters is 0");
  EXPECT_REFUSED(LinearLR(optimizer_, {.start_factor = 0}), "start_factor is 0; allowed: above 0");
  EXPECT_REFUSED(LinearLR(optimizer_, {.start_factor = 1.1}), "start_factor is 1.1");
  EXPECT_REFUSED(LinearLR(optimizer_, {.end_factor = -0.1}), "end_factor is -0.1; allowed: 0 to 1");
  EXPECT_REFUSED(LinearLR(optimizer_, {.total_iters = -1}), "LinearLR: total_iters is -1");
  EXPECT_REFUSED(ExponentialLR(optimizer_, {}), "ExponentialLR: gamma is nan");
  EXPECT_REFUSED(ExponentialLR(optimizer_, {.gamma = -1}), "gamma is -1; allowed: finite numbers");
  EXPECT_REFUSED(PolynomialLR(optimizer_, {.total_iters = 0}), "PolynomialLR: total_iters is 0");
  EXPECT_REFUSED(PolynomialLR(optimizer_, {.power = -1}), "power is -1");
}

TEST_F(ScheduleRefusals, OfCosines) {
  EXPECT_REFUSED(CosineAnnealingLR(optimizer_, {}), "T_max is 0; allowed: 1 or more");
  EXPECT_REFUSED(CosineAnnealingLR(optimizer_, {.T_max = 5, .eta_min = kNan}), "eta_min is nan");
  EXPECT_REFUSED(CosineAnnealingWarmRestarts(optimizer_, {}), "T_0 is 0; allowed: 1 or more");
  EXPECT_REFUSED(CosineAnnealingWarmRestarts(optimizer_, {.T_0 = 5, .T_mult = 0}), "T_mult is 0");
  EXPECT_REFUSED(CosineAnnealingWarmRestarts(optimizer_, {.T_0 = 5, .eta_min = -1}),
                 "CosineAnnealingWarmRestarts: eta_min is -1");
}

TEST_F(ScheduleRefusals, OfOneCycle) {
  const auto with = [](auto change) {
    OneCycleLROptions options{.max_lr = {0.1}, .total_steps = 10};
    change(options);
    return options;
  };
  EXPECT_REFUSED(OneCycleLR(optimizer_, {.total_steps = 10}), "max_lr has 0 value(s); allowed: 2");
  EXPECT_REFUSED(OneCycleLR(optimizer_, {.max_lr = {kNan}, .total_steps = 10}), "max_lr[0] is nan");
  EXPECT_REFUSED(OneCycleLR(optimizer_, {.max_lr = {0.1}}), "the number of steps is not given");
  EXPECT_REFUSED(OneCycleLR(optimizer_, {.max_lr = {0.1}, .epochs = 3}), "total_steps, or epochs");
  EXPECT_REFUSED(OneCycleLR(optimizer_, {.max_lr = {0.1}, .total_steps = 0}), "total_steps is 0");
  EXPECT_REFUSED(OneCycleLR(optimizer_, {.max_lr = {0.1}, .epochs = 0, .steps_per_epoch = 1}),
                 "epochs is 0; allowed: 1 or more");
  EXPECT_REFUSED(OneCycleLR(optimizer_, {.max_lr = {0.1}, .epochs = 2, .steps_per_epoch = -1}),
                 "steps_per_epoch is -1");
  EXPECT_REFUSED(OneCycleLR(optimizer_, with([](auto& o) { o.pct_start = 1.01; })),
                 "pct_start is 1.01; allowed: 0 to 1");
  EXPECT_REFUSED(OneCycleLR(optimizer_, with([](auto& o) { o.pct_start = kNan; })),
                 "pct_start is nan");
  EXPECT_REFUSED(OneCycleLR(optimizer_, with([](auto& o) { o.div_factor = 0; })),
                 "div_factor is 0; allowed: finite, above 0");
  EXPECT_REFUSED(OneCycleLR(optimizer_, with([](auto& o) { o.final_div_factor = kInfinity; })),
                 "final_div_factor is inf");
  EXPECT_REFUSED(OneCycleLR(optimizer_, with([](auto& o) { o.base_momentum = {-0.1}; })),
                 "base_momentum[0] is -0.1");
  EXPECT_EQ(rates(optimizer_).at("momentum0"), 0.9);
}

TEST_F(ScheduleRefusals, OfCycles) {
  EXPECT_REFUSED(CyclicLR(optimizer_, {.max_lr = {0.1}}), "base_lr has 0 value(s)");
  EXPECT_REFUSED(CyclicLR(optimizer_, {.base_lr = {0.1}, .max_lr = {1, 2, 3}}),
                 "max_lr has 3 value(s); allowed: 2");
  EXPECT_REFUSED(CyclicLR(optimizer_, {.base_lr = {0.1}, .max_lr = {1}, .step_size_up = 0}),
                 "step_size_up is 0");
  EXPECT_REFUSED(CyclicLR(optimizer_, {.base_lr = {0.1}, .max_lr = {1}, .step_size_down = -1}),
                 "step_size_down is -1; allowed: 0 or more");
  EXPECT_REFUSED(CyclicLR(optimizer_, {.base_lr = {0.1}, .max_lr = {1}, .gamma = kNan}),
                 "CyclicLR: gamma is nan");
  EXPECT_REFUSED(CyclicLR(optimizer_, {.base_lr = {0.1}, .max_lr = {1}, .max_momentum = {kNan}}),
                 "max_momentum[0] is nan");
  const auto adam = make_optimizer("adam", {0.1});
  EXPECT_REFUSED(CyclicLR(*adam, {.base_lr = {0.1}, .max_lr = {1}, .max_momentum = {1}}),
                 "max_momentum is 1; allowed: below 1 for betas");
  const auto adagrad = make_optimizer("adagrad", {0.1});
  EXPECT_REFUSED(CyclicLR(*adagrad, {.base_lr = {0.1}, .max_lr = {1}}),
                 "CyclicLR: cycle_momentum is true, but the optimizer has neither momentum nor");
  EXPECT_REFUSED(OneCycleLR(*adagrad, {.max_lr = {0.1}, .total_steps = 10}),
                 "set cycle_momentum = false");
  CyclicLR(*adagrad, {.base_lr = {0.1}, .max_lr = {1}, .cycle_momentum = false}).step();
}

TEST_F(ScheduleRefusals, OfPlateaus) {
  EXPECT_REFUSED(ReduceLROnPlateau(optimizer_, {.factor = 1}),
                 "factor is 1; allowed: 0 up to below");
  EXPECT_REFUSED(ReduceLROnPlateau(optimizer_, {.factor = kNan}), "factor is nan");
  EXPECT_REFUSED(ReduceLROnPlateau(optimizer_, {.patience = -1}), "patience is -1");
  EXPECT_REFUSED(ReduceLROnPlateau(optimizer_, {.threshold = kNan}), "threshold is nan");
  EXPECT_REFUSED(ReduceLROnPlateau(optimizer_, {.cooldown = -1}), "cooldown is -1");
  EXPECT_REFUSED(ReduceLROnPlateau(optimizer_, {.min_lr = {0, 0, 0}}), "min_lr has 3 value(s)");
  EXPECT_REFUSED(ReduceLROnPlateau(optimizer_, {.min_lr = {-1}}), "min_lr[0] is -1");
  EXPECT_REFUSED(ReduceLROnPlateau(optimizer_, {.eps = -1}), "eps is -1");
}

TEST_F(ScheduleRefusals, OfMetrics) {
  ReduceLROnPlateau plateau(optimizer_, {.patience = 0});
  LRScheduler& any = plateau;
  plateau.step(1);
  const auto before = plateau.state_dict();
  EXPECT_REFUSED(any.step(), "ReduceLROnPlateau: step() was given no metric");
  for (const double metric : {kNan, kInfinity, -kInfinity})
    EXPECT_REFUSED(plateau.step(metric), "allowed: finite numbers; skip this step");
  EXPECT_EQ(plateau.state_dict(), before);
  StepLR step(optimizer_, {.step_size = 1});
  EXPECT_REFUSED(step.step(0.5), "StepLR: step() was given the metric 0.5");
  SequentialLR sequential(optimizer_, {.schedulers = {StepLROptions{.step_size = 1}}});
  EXPECT_REFUSED(sequential.step(0.5), "SequentialLR: step() was given the metric 0.5");
}

template <class S>
concept HasStepWithoutMetric = requires(S& schedule) { schedule.step(); };
static_assert(!HasStepWithoutMetric<ReduceLROnPlateau>);
static_assert(HasStepWithoutMetric<StepLR>);
static_assert(std::is_convertible_v<StepLROptions, ScheduleSpec>);
static_assert(!std::is_convertible_v<ReduceLROnPlateauOptions, ScheduleSpec>);
static_assert(std::is_convertible_v<StepLR (*)(OptimizerRef, const ScheduleStart&), ScheduleSpec>);
static_assert(!std::is_convertible_v<ReduceLROnPlateau (*)(OptimizerRef, const ScheduleStart&),
                                     ScheduleSpec>);

TEST_F(ScheduleRefusals, OfSchedulesMadeOfSchedules) {
  const StepLROptions part{.step_size = 3};
  EXPECT_REFUSED(SequentialLR(optimizer_, {}), "SequentialLR: schedulers is empty");
  EXPECT_REFUSED(ChainedScheduler(optimizer_, {}), "ChainedScheduler: schedulers is empty");
  EXPECT_REFUSED(SequentialLR(optimizer_, {.schedulers = {part, part}}),
                 "there are 0 milestone(s) for 2 schedule(s); allowed: one fewer");
  EXPECT_REFUSED(SequentialLR(optimizer_, {.schedulers = {part, part, part}, .milestones = {5, 4}}),
                 "milestones[1] is 4; allowed: 5 or more");
  EXPECT_REFUSED(SequentialLR(optimizer_, {.schedulers = {part, part}, .milestones = {-1}}),
                 "milestones[0] is -1");
  EXPECT_REFUSED(ChainedScheduler(optimizer_, {.schedulers = {part, StepLROptions{}}}),
                 "StepLR: step_size is 0");
  const auto another = make_optimizer("sgd", {0.1, 0.1});
  const auto elsewhere = [&](OptimizerRef, const ScheduleStart& start) {
    return StepLR(*another, part, start);
  };
  EXPECT_REFUSED(ChainedScheduler(optimizer_, {.schedulers = {part, elsewhere}}),
                 "ChainedScheduler: schedulers[1] is on another optimizer");
}

TEST_F(ScheduleRefusals, OfFunctionsWithWarmup) {
  EXPECT_REFUSED(get_constant_schedule_with_warmup(optimizer_, -1),
                 "get_constant_schedule_with_warmup: num_warmup_steps is -1; allowed: 0 or more");
  EXPECT_REFUSED(get_linear_schedule_with_warmup(optimizer_, 1, -1),
                 "get_linear_schedule_with_warmup: num_training_steps is -1");
  EXPECT_REFUSED(get_cosine_schedule_with_warmup(optimizer_, 1, 10, kNan), "num_cycles is nan");
  EXPECT_REFUSED(get_cosine_with_hard_restarts_schedule_with_warmup(optimizer_, 1, 10, 0),
                 "num_cycles is 0; allowed: 1 or more");
  EXPECT_REFUSED(get_polynomial_decay_schedule_with_warmup(optimizer_, 1, 10, 0.1),
                 "lr_end is 0.1; allowed: below the lr of the optimizer's defaults, 0.1");
  EXPECT_REFUSED(get_polynomial_decay_schedule_with_warmup(optimizer_, 1, 10, 1e-7, -1),
                 "power is -1");
  EXPECT_REFUSED(get_inverse_sqrt_schedule(optimizer_, 1, 0), "timescale is 0; allowed: 1 or more");
}

TEST_F(ScheduleRefusals, OfStarts) {
  const StepLROptions options{.step_size = 3};
  EXPECT_REFUSED(StepLR(optimizer_, options, {.last_epoch = 3}),
                 "StepLR: initial_lrs is empty with last_epoch 3");
  EXPECT_REFUSED(StepLR(optimizer_, options, {.last_epoch = -2}), "last_epoch is -2");
  EXPECT_REFUSED(StepLR(optimizer_, options, {.initial_lrs = {1, 2, 3}}),
                 "initial_lrs has 3 value(s); allowed: 2");
  EXPECT_REFUSED(StepLR(optimizer_, options, {.initial_lrs = {kNan}}), "initial_lrs[0] is nan");
}

TEST_F(ScheduleRefusals, OfStepsPastTheEndOfOneCycle) {
  OneCycleLR schedule(optimizer_, {.max_lr = {0.1}, .total_steps = 3});
  for (int i = 0; i < 3; ++i) schedule.step();
  const auto before = rates(optimizer_);
  const auto state = schedule.state_dict();
  for (int i = 0; i < 2; ++i)
    EXPECT_REFUSED(schedule.step(), "OneCycleLR: step 4 was called for; allowed: total_steps = 3");
  EXPECT_EQ(rates(optimizer_), before);
  EXPECT_EQ(schedule.state_dict(), state);
}

TEST_F(ScheduleRefusals, OfRatesThatAreNotFinite) {
  LambdaLR schedule(optimizer_, {.lr_lambda = {one, [](int64_t n) { return n < 2 ? 1 : kNan; }}});
  schedule.step();
  const auto before = rates(optimizer_);
  EXPECT_REFUSED(schedule.step(),
                 "LambdaLR: the learning rate of group 1 would be nan in epoch 2; allowed: finite");
  EXPECT_EQ(rates(optimizer_), before);
  EXPECT_EQ(schedule.last_epoch(), 1);
}

TEST_F(ScheduleRefusals, OfGroupsThatWereAdded) {
  StepLR schedule(optimizer_, {.step_size = 3});
  const auto another = make_optimizer("sgd", {0.5});
  optimizer_.add_param_group(another->param_groups()[0]);
  EXPECT_REFUSED(schedule.step(), "StepLR: the optimizer has 3 parameter group(s); allowed: 2");
  EXPECT_REFUSED(schedule.load_state_dict(schedule.state_dict()), "has 3 parameter group(s)");
}

// A state that is refused, whatever is wrong with it, changes neither the schedule nor the rates.
class StateRefusals : public ScheduleRefusals {
 protected:
  void expect_refused(const std::function<void(ScheduleState&)>& spoil, const char* text) {
    SequentialLR schedule(
        optimizer_,
        {.schedulers = {LinearLROptions{}, OneCycleLROptions{.max_lr = {0.3}, .total_steps = 10}},
         .milestones = {3}});
    for (int i = 0; i < 5; ++i) schedule.step();
    const auto state = schedule.state_dict();
    const auto before = rates(optimizer_);
    ScheduleState spoilt = state;
    spoilt["0.last_lr"] = {7, 7};  // good, and restored before what is bad
    spoil(spoilt);
    EXPECT_REFUSED(schedule.load_state_dict(spoilt), text);
    EXPECT_EQ(schedule.state_dict(), state);
    EXPECT_EQ(rates(optimizer_), before);
  }
};

TEST_F(StateRefusals, NameTheEntry) {
  expect_refused([](auto& s) { s.erase("1.base_lrs"); },
                 "has no entry \"1.base_lrs\"; nothing was");
  expect_refused([](auto& s) { s["2.last_lr"] = {1}; }, "an unknown entry \"2.last_lr\"");
  expect_refused([](auto& s) { s["1.last_lr"] = {1}; },
                 "\"1.last_lr\" of the state has 1 value(s); allowed: 2");
  expect_refused([](auto& s) { s["last_epoch"] = {}; },
                 "\"last_epoch\" of the state has 0 value(s); allowed: 1");
}

TEST_F(StateRefusals, NameTheValue) {
  expect_refused([](auto& s) { s["1.last_epoch"] = {2.5}; },
                 "OneCycleLR: \"1.last_epoch\" of the state is 2.5; allowed: whole numbers");
  expect_refused([](auto& s) { s["1.last_epoch"] = {kNan}; },
                 "\"1.last_epoch\" of the state is nan");
  expect_refused([](auto& s) { s["last_epoch"] = {-1}; }, "allowed: whole numbers, 0 or more");
  expect_refused([](auto& s) { s["1.last_lr"] = {1, kInfinity}; },
                 "\"1.last_lr\" of the state is inf; allowed: finite numbers");
  expect_refused([](auto& s) { s["1.last_epoch"] = {11}; },
                 "OneCycleLR: the state is of step 11; allowed: total_steps = 10");
}

TEST_F(StateRefusals, OfPlateaus) {
  ReduceLROnPlateau plateau(optimizer_);
  auto state = plateau.state_dict();
  EXPECT_EQ(state["best"], std::vector<double>{kInfinity});
  plateau.load_state_dict(state);
  state["best"] = {kNan};
  EXPECT_REFUSED(plateau.load_state_dict(state), "\"best\" of the state is nan; allowed: numbers");
  state["best"] = {1};
  state["cooldown_counter"] = {-1};
  EXPECT_REFUSED(plateau.load_state_dict(state), "\"cooldown_counter\" of the state is -1");
  EXPECT_EQ(plateau.state_dict()["best"], std::vector<double>{kInfinity});
}

}  // namespace
}  // namespace drivetrain
