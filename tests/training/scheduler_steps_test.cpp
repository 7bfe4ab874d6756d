// SPDX-License-Identifier: Apache-2.0
// Prepared schedules: they step with the updates of their optimizer. The values are those of
// Accelerate's own tests where they agree with that.
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "expect_error.h"
#include "ranks.h"

namespace drivetrain {
namespace {

using torch::Tensor;
constexpr float kInf = std::numeric_limits<float>::infinity();

// lr 1, which falls by a tenth an epoch, on an optimizer in fp16 whose gradients are given.
struct Training {
  explicit Training(const AcceleratorOptions& options)
      : accelerator(options),
        optimizer(accelerator.prepare(torch::optim::SGD({parameter}, torch::optim::SGDOptions(1)))),
        schedule(accelerator.prepare(
            LambdaLR(optimizer, {.lr_lambda = {[](int64_t n) { return 1 - n / 10.0; }}}))) {}

  double run(float slope) {
    accelerator.backward((parameter * slope).sum());
    optimizer.step();
    schedule.step();
    optimizer.zero_grad();
    return schedule.get_last_lr()[0];
  }

  Accelerator accelerator;
  Tensor parameter = here::zeros({1}).requires_grad_();
  PreparedOptimizer<torch::optim::SGD> optimizer;
  PreparedScheduler<LambdaLR> schedule;
};

AcceleratorOptions fp16(const World& world) {
  return {.world = world, .mixed_precision = MixedPrecision::fp16};
}

TEST(PreparedScheduler, StepsOncePerUpdateWhateverTheNumberOfProcesses) {
  for (const int size : {1, 2})
    run_ranks(size, [](const World& world) {
      Training training(fp16(world));
      EXPECT_NEAR(training.run(1), 0.9, 1e-12);
      EXPECT_NEAR(training.run(kInf), 0.9, 1e-12);  // the update was skipped
      EXPECT_NEAR(training.run(1), 0.8, 1e-12);
    });
}

TEST(PreparedScheduler, StepsForEachProcessIfAskedTo) {
  run_ranks(2, [](const World& world) {
    AcceleratorOptions options = fp16(world);
    options.scale_schedule_by_processes = true;
    Training training(options);
    EXPECT_NEAR(training.run(1), 0.8, 1e-12);
    EXPECT_NEAR(training.run(kInf), 0.8, 1e-12);
  });
}

TEST(PreparedScheduler, StepsAlwaysIfAskedTo) {
  run_ranks(2, [](const World& world) {
    AcceleratorOptions options = fp16(world);
    options.step_scheduler_with_optimizer = false;
    Training training(options);
    EXPECT_NEAR(training.run(1), 0.9, 1e-12);
    EXPECT_NEAR(training.run(kInf), 0.8, 1e-12);
  });
}

TEST(PreparedScheduler, RefusesToMultiplyWhatDoesNotGoWithUpdates) {
  EXPECT_ERROR(
      Accelerator({.step_scheduler_with_optimizer = false, .scale_schedule_by_processes = true}),
      std::invalid_argument, "scale_schedule_by_processes without step_scheduler_with_optimizer");
}

// Linear to 0 over 20 updates: it is there after them, not after so many micro-batches.
TEST(PreparedScheduler, WaitsForTheLastMicroBatch) {
  for (const int64_t steps : {1, 2, 4}) {
    Accelerator accelerator({.gradient_accumulation = {.steps = steps}});
    auto model = accelerator.prepare(torch::nn::Linear(1, 1));
    auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 10));
    auto schedule = accelerator.prepare(get_linear_schedule_with_warmup(optimizer, 0, 20));
    for (int64_t i = 1; i <= 20 * steps; ++i) {
      const auto micro_batch = accelerator.accumulate(model);
      accelerator.backward(model->forward(here::zeros({1, 1})).sum());
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
      EXPECT_NEAR(schedule.get_last_lr()[0], 10 - 0.5 * static_cast<double>(i / steps), 1e-9);
    }
  }
}

TEST(PreparedScheduler, TakesAMetricAndKeepsItsState) {
  Accelerator accelerator;
  const Tensor parameter = here::zeros({1}).requires_grad_();
  auto optimizer = accelerator.prepare(torch::optim::SGD({parameter}, torch::optim::SGDOptions(1)));
  auto schedule = accelerator.prepare(ReduceLROnPlateau(optimizer, {.factor = 0.5, .patience = 0}));
  for (const double metric : {1.0, 1.0}) {
    parameter.mutable_grad() = here::ones({1});
    optimizer.step();
    schedule.step(metric);
  }
  EXPECT_EQ(schedule.get_last_lr()[0], 0.5);
  const ScheduleState state = schedule.state_dict();
  schedule->step(1.0);  // the schedule itself, whatever the optimizer did
  EXPECT_EQ(schedule.get_last_lr()[0], 0.25);
  schedule.load_state_dict(state);
  EXPECT_EQ(schedule.get_last_lr()[0], 0.5);
}

}  // namespace
}  // namespace drivetrain
