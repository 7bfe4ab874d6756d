// SPDX-License-Identifier: Apache-2.0
// The schedules of transformers, as factors of the initial learning rate.
#include <drivetrain/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "training/schedule_checks.h"

namespace drivetrain {

using std::numbers::pi;
using training::require_not_negative;
using training::require_whole;

namespace {

// `after(step)` once the linear rise is over.
template <class After>
LambdaLR with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps, const ScheduleStart& start,
                     After after) {
  return {std::move(optimizer),
          {.lr_lambda = {[=](int64_t step) -> double {
             if (step < num_warmup_steps) return static_cast<double>(step) / num_warmup_steps;
             return after(step);
           }}},
          start};
}

void require_steps(const char* schedule, int64_t num_warmup_steps, int64_t num_training_steps = 0) {
  require_whole(schedule, "num_warmup_steps", num_warmup_steps, 0);
  require_whole(schedule, "num_training_steps", num_training_steps, 0);
}

// How much of what follows the rise is over at `step`; 1 at the end.
double progress(int64_t step, int64_t num_warmup_steps, int64_t num_training_steps) {
  const int64_t length = std::max<int64_t>(1, num_training_steps - num_warmup_steps);
  return static_cast<double>(step - num_warmup_steps) / static_cast<double>(length);
}

}  // namespace

LambdaLR get_constant_schedule(OptimizerRef optimizer, const ScheduleStart& start) {
  return with_warmup(std::move(optimizer), 0, start, [](int64_t) { return 1.0; });
}

LambdaLR get_constant_schedule_with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps,
                                           const ScheduleStart& start) {
  require_steps(__func__, num_warmup_steps);
  return with_warmup(std::move(optimizer), num_warmup_steps, start, [](int64_t) { return 1.0; });
}

LambdaLR get_linear_schedule_with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps,
                                         int64_t num_training_steps, const ScheduleStart& start) {
  require_steps(__func__, num_warmup_steps, num_training_steps);
  const int64_t length = std::max<int64_t>(1, num_training_steps - num_warmup_steps);
  return with_warmup(std::move(optimizer), num_warmup_steps, start, [=](int64_t step) {
    return std::max(0.0, static_cast<double>(num_training_steps - step) / length);
  });
}

LambdaLR get_cosine_schedule_with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps,
                                         int64_t num_training_steps, double num_cycles,
                                         const ScheduleStart& start) {
  require_steps(__func__, num_warmup_steps, num_training_steps);
  require_not_negative(__func__, "num_cycles", num_cycles);
  return with_warmup(std::move(optimizer), num_warmup_steps, start, [=](int64_t step) {
    const double done = progress(step, num_warmup_steps, num_training_steps);
    return std::max(0.0, 0.5 * (1.0 + std::cos(pi * num_cycles * 2.0 * done)));
  });
}

LambdaLR get_cosine_with_hard_restarts_schedule_with_warmup(OptimizerRef optimizer,
                                                            int64_t num_warmup_steps,
                                                            int64_t num_training_steps,
                                                            int64_t num_cycles,
                                                            const ScheduleStart& start) {
  require_steps(__func__, num_warmup_steps, num_training_steps);
  require_whole(__func__, "num_cycles", num_cycles, 1);
  return with_warmup(std::move(optimizer), num_warmup_steps, start, [=](int64_t step) {
    const double done = progress(step, num_warmup_steps, num_training_steps);
    if (done >= 1) return 0.0;
    return std::max(0.0, 0.5 * (1.0 + std::cos(pi * std::fmod(num_cycles * done, 1.0))));
  });
}

LambdaLR get_polynomial_decay_schedule_with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps,
                                                   int64_t num_training_steps, double lr_end,
                                                   double power, const ScheduleStart& start) {
  require_steps(__func__, num_warmup_steps, num_training_steps);
  require_not_negative(__func__, "lr_end", lr_end);
  require_not_negative(__func__, "power", power);
  const double lr_init = optimizer.get().defaults().get_lr();
  training::require(lr_end < lr_init, __func__, "lr_end", lr_end,
                    core::str("below the lr of the optimizer's defaults, ", lr_init));
  return with_warmup(std::move(optimizer), num_warmup_steps, start, [=](int64_t step) {
    if (step > num_training_steps) return lr_end / lr_init;
    const double left = 1 - progress(step, num_warmup_steps, num_training_steps);
    return ((lr_init - lr_end) * std::pow(left, power) + lr_end) / lr_init;
  });
}

LambdaLR get_inverse_sqrt_schedule(OptimizerRef optimizer, int64_t num_warmup_steps,
                                   std::optional<int64_t> timescale, const ScheduleStart& start) {
  require_steps(__func__, num_warmup_steps);
  const int64_t scale = timescale.value_or(num_warmup_steps > 0 ? num_warmup_steps : 10'000);
  require_whole(__func__, "timescale", scale, 1);
  return with_warmup(std::move(optimizer), num_warmup_steps, start, [=](int64_t step) {
    return 1.0 / std::sqrt(static_cast<double>(step + scale - num_warmup_steps) / scale);
  });
}

}  // namespace drivetrain
