// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules on optimizers that move, beside and inside one another, and of the user.
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <optional>

#include "expect_error.h"
#include "training/schedule_cases.h"

namespace drivetrain {
namespace {

namespace optim = torch::optim;
using Rates = std::vector<double>;

optim::SGD sgd(double lr) {
  return optim::SGD({torch::zeros({1}, torch::requires_grad())}, optim::SGDOptions(lr));
}

Rates lrs_of(const optim::Optimizer& optimizer) {
  Rates lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

// The learning rates of group 0 before `steps` steps and after each.
Rates lrs_in(LRScheduler& schedule, int steps) {
  Rates lrs = {schedule.get_last_lr()[0]};
  for (int i = 0; i < steps; ++i) {
    schedule.step();
    lrs.push_back(lrs_of(schedule.optimizer())[0]);
  }
  return lrs;
}

TEST(Schedule, OnAPlainAndOnAPreparedOptimizer) {
  optim::SGD plain = sgd(1);
  Accelerator accelerator;
  auto prepared = accelerator.prepare(sgd(1));
  StepLR first(plain, {.step_size = 1}), second(prepared, {.step_size = 1});
  EXPECT_EQ(lrs_in(first, 3), lrs_in(second, 3));
  EXPECT_EQ(&first.optimizer(), &plain);
  EXPECT_EQ(&second.optimizer(), &prepared);
}

TEST(Schedule, FollowsAPreparedOptimizerThatMoves) {
  std::optional<PreparedOptimizer<optim::SGD>> here(PreparedOptimizer<optim::SGD>(sgd(1)));
  SequentialLR schedule(*here, {.schedulers = {StepLROptions{.step_size = 1, .gamma = 0.5},
                                               ExponentialLROptions{.gamma = 0.1}},
                                .milestones = {3}});
  schedule.step();
  auto there = std::make_unique<PreparedOptimizer<optim::SGD>>(std::move(*here));
  here.reset();
  schedule.step();
  EXPECT_EQ(lrs_of(*there), Rates{0.25});
  EXPECT_EQ(&schedule.optimizer(), there.get());
  PreparedOptimizer<optim::SGD> assigned(sgd(7));
  StepLR of_the_overwritten(assigned, {.step_size = 1});
  assigned = std::move(*there);
  there.reset();
  schedule.step();
  EXPECT_EQ(lrs_of(assigned), Rates{1});
  EXPECT_ERROR(of_the_overwritten.step(), std::invalid_argument, "is gone");
}

TEST(Schedule, RefusesAnOptimizerThatIsGone) {
  std::optional<PreparedOptimizer<optim::SGD>> prepared(PreparedOptimizer<optim::SGD>(sgd(1)));
  StepLR schedule(*prepared, {.step_size = 1});
  prepared.reset();
  for (int i = 0; i < 2; ++i)
    EXPECT_ERROR(schedule.step(), std::invalid_argument,
                 "training: the prepared optimizer of a learning-rate schedule is gone; keep it");
  EXPECT_ERROR(schedule.optimizer(), std::invalid_argument, "is gone");
  EXPECT_ERROR(schedule.load_state_dict(schedule.state_dict()), std::invalid_argument, "is gone");
  EXPECT_EQ(schedule.last_epoch(), 0);
}

TEST(Schedule, MayBeMovedItself) {
  optim::SGD optimizer = sgd(1);
  ChainedScheduler schedule(optimizer, {.schedulers = {StepLROptions{.step_size = 2},
                                                       ExponentialLROptions{.gamma = 0.5}}});
  schedule.step();
  ChainedScheduler moved(std::move(schedule));
  moved.step();
  EXPECT_NEAR(lrs_of(optimizer)[0], 0.025, 1e-15);
  optim::SGD another = sgd(1);
  moved = ChainedScheduler(another, {.schedulers = {StepLROptions{.step_size = 1}}});
  moved.step();
  EXPECT_NEAR(lrs_of(another)[0], 0.1, 1e-15);
  std::vector<LambdaLR> several;
  several.push_back(get_linear_schedule_with_warmup(optimizer, 0, 4));
  several.push_back(get_constant_schedule(another));
  several[0].step();
  EXPECT_EQ(several[0].last_epoch(), 1);
}

// The first schedule has changed the lrs when the second is made.
TEST(Schedule, BesideAnotherTakesTheInitialRates) {
  optim::SGD optimizer = sgd(1);
  const ConstantLR warmup(optimizer, {.factor = 0.5});
  EXPECT_EQ(LambdaLR(optimizer, {.lr_lambda = {[](int64_t) { return 1; }}}).base_lrs(), Rates{0.5});
  const CosineAnnealingLR cosine(optimizer, {.T_max = 9}, {.initial_lrs = {1}});
  EXPECT_EQ(cosine.base_lrs(), Rates{1});
  EXPECT_EQ(lrs_of(optimizer), Rates{0.5});
}

TEST(Schedule, AFactorOf0Ends) {
  optim::SGD optimizer = sgd(0.3);
  ConstantLR schedule(optimizer, {.factor = 0, .total_iters = 2});
  EXPECT_EQ(lrs_in(schedule, 3), (Rates{0, 0, 0.3, 0.3}));
}

// PyTorch divides by 0 where a phase has no length.
TEST(Schedule, OneCycleMayHavePhasesWithoutLength) {
  optim::SGD optimizer = sgd(1);
  OneCycleLR top(optimizer, {.max_lr = {1}, .total_steps = 10, .pct_start = 0.1});
  EXPECT_EQ(lrs_in(top, 10)[0], 1);
  OneCycleLR rise(optimizer, {.max_lr = {1}, .total_steps = 4, .pct_start = 1});
  const Rates lrs = lrs_in(rise, 4);
  EXPECT_EQ(lrs[3], 1);
  EXPECT_EQ(lrs[4], 0.04 / 1e4);
}

TEST(Schedule, RestartsWhatIsMadeOfSchedulesInASequence) {
  const auto expected = [](ScheduleSpec spec) {
    optim::SGD optimizer = sgd(1);
    return lrs_in(*spec.make(optimizer, {}), 20);
  };
  const SequentialLROptions sequence{
      .schedulers = {LinearLROptions{}, ExponentialLROptions{.gamma = 0.5}}, .milestones = {5}};
  const ChainedSchedulerOptions chain{
      .schedulers = {LinearLROptions{}, PolynomialLROptions{.total_iters = 15}}};
  for (const ScheduleSpec& inner : {ScheduleSpec(sequence), ScheduleSpec(chain)})
    for (const int64_t milestone : {0, 7}) {
      optim::SGD optimizer = sgd(1);
      SequentialLR schedule(optimizer, {.schedulers = {inner, inner}, .milestones = {milestone}});
      for (int64_t i = 0; i < milestone; ++i) schedule.step();
      EXPECT_EQ(lrs_in(schedule, 20), expected(inner)) << milestone;
    }
}

TEST(Schedule, OfFunctionsInASequence) {
  optim::SGD optimizer = sgd(1);
  const auto linear = [](OptimizerRef o, const ScheduleStart& start) {
    return get_linear_schedule_with_warmup(std::move(o), 2, 4, start);
  };
  SequentialLR schedule(optimizer, {.schedulers = {linear, linear}, .milestones = {5}});
  EXPECT_EQ(lrs_in(schedule, 9), (Rates{0, 0.5, 1, 0.5, 0, 0, 0.5, 1, 0.5, 0}));
}

// Of the user: a rate of its own, and a state.
class Countdown final : public LRScheduler {
 public:
  Countdown(OptimizerRef optimizer, const ScheduleStart& start = {})
      : LRScheduler("Countdown", std::move(optimizer), start) {
    this->start(start);
  }
  int64_t epochs_seen = 0;

 private:
  double lr_at(size_t group, double /*lr*/, int64_t epoch) const override {
    return base_lrs()[group] / static_cast<double>(1 + epoch);
  }
  void on_epoch(int64_t epoch) override { epochs_seen = epoch; }
  void save(const std::string& prefix, ScheduleState& state) const override {
    LRScheduler::save(prefix, state);
    state[prefix + "seen"] = {static_cast<double>(epochs_seen)};
  }
};

TEST(Schedule, OfTheUserIsOneAsTheOthers) {
  optim::SGD optimizer = sgd(1);
  Countdown schedule(optimizer);
  EXPECT_EQ(lrs_in(schedule, 3), (Rates{1, 0.5, 1.0 / 3, 0.25}));
  EXPECT_EQ(schedule.epochs_seen, 3);
  EXPECT_EQ(schedule.state_dict()["seen"], Rates{3});
  const auto make = [](OptimizerRef o, const ScheduleStart& start) {
    return Countdown(std::move(o), start);
  };
  optim::SGD another = sgd(1);
  ChainedScheduler chain(another, {.schedulers = {make, ExponentialLROptions{.gamma = 0.5}}});
  EXPECT_EQ(lrs_in(chain, 2), (Rates{1, 0.25, 1.0 / 6}));
  EXPECT_TRUE(chain.state_dict().contains("0.seen"));
}

// Learning rate and betas reach the prepared optimizer's own step.
TEST(Schedule, DrivesPreparedAndPlainTrainingAlike) {
  const auto make = [] {
    return optim::AdamW({torch::zeros({1}, torch::requires_grad())}, optim::AdamWOptions(1));
  };
  optim::AdamW plain = make();
  PreparedOptimizer<optim::AdamW> prepared(make());
  const OneCycleLROptions options{.max_lr = {0.1}, .total_steps = 9};
  OneCycleLR of_plain(plain, options), of_prepared(prepared, options);
  const auto train = [](auto& optimizer, LRScheduler& schedule) {
    auto& parameter = optimizer.param_groups()[0].params()[0];
    for (int i = 0; i < 9; ++i) {
      parameter.mutable_grad() = torch::ones({1}) / (1 + i);
      optimizer.step();
      schedule.step();
    }
    return parameter.template item<double>();
  };
  const double expected = train(plain, of_plain);
  EXPECT_LT(expected, -0.1);
  EXPECT_NEAR(train(prepared, of_prepared), expected, 1e-6);
}

}  // namespace
}  // namespace drivetrain
