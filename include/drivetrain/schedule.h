// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules, with the names, arguments, defaults and values of
// torch.optim.lr_scheduler (2.13), and those of Hugging Face transformers as functions.
//
//   drivetrain::OneCycleLR schedule(optimizer, {.max_lr = {0.1}, .total_steps = 100});
//   ... optimizer.step(); schedule.step(); ...
//
// A schedule sets the learning rate (lr) of every parameter group when it is made, for epoch 0, and
// in each step(), which enters the next epoch, whatever the program calls so. Make it after the
// optimizer was prepared. In an option with a value a group, a list of one serves all groups.
//
// Constructors throw std::invalid_argument if an option is not finite or not in the range noted
// beside it, or a list has a wrong length. "Required": there is no default.
#pragma once

#include <drivetrain/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace drivetrain {

// How far a schedule is; its options are not in it. Keys of schedules inside another begin with
// "0.", "1.", ...
using ScheduleState = std::map<std::string, std::vector<double>>;

// Where a schedule starts, if not from the optimizer as it is.
struct ScheduleStart {
  // The groups' lrs before any schedule changed them, for one made beside another. Default: the
  // lrs that they have.
  std::vector<double> initial_lrs = {};
  // >= -1. From 0: as if last_epoch + 1 steps had been made from `initial_lrs`, then required.
  int64_t last_epoch = -1;
};

// What all schedules have in common; by itself, a schedule that changes nothing. A class of your
// own is final, overrides lr_at, and calls start() at the end of its constructor.
class LRScheduler {
 public:
  virtual ~LRScheduler() = default;

  // Enters the next epoch. `metric` is for ReduceLROnPlateau, which needs one; others refuse it.
  // Throws std::invalid_argument, with nothing changed, if an lr would not be finite, the optimizer
  // is gone, or its groups are not as many as when the schedule was made.
  void step(std::optional<double> metric = std::nullopt) {
    metric ? advance_by(*metric) : advance();
  }

  // The lr of each group, as this schedule last set it.
  const std::vector<double>& get_last_lr() const noexcept { return last_lr_; }
  // What each group's lr is computed from: its initial lr, but where a class says otherwise.
  const std::vector<double>& base_lrs() const noexcept { return base_lrs_; }
  // Steps made; -1 inside a SequentialLR that has not come to this schedule.
  int64_t last_epoch() const noexcept { return last_epoch_; }
  // Throws std::invalid_argument if it is gone.
  torch::optim::Optimizer& optimizer() const { return optimizer_.get(); }
  // What the last step of a prepared optimizer has done; none for a plain one.
  std::optional<StepOutcome> outcome() const { return optimizer_.outcome(); }

  // A schedule of the same class and options that loads it goes on with the same bits. The states
  // of functions are not in it.
  ScheduleState state_dict() const;
  // Sets the groups' lrs, too, and their momentum where the schedule cycles it: of several
  // schedules on one optimizer, load last that which steps last. Throws std::invalid_argument, with
  // nothing changed, if an entry is missing, unknown, of a wrong length or of no meaning.
  void load_state_dict(const ScheduleState& state);

 protected:
  // `name` stands before messages.
  LRScheduler(std::string name, OptimizerRef optimizer, const ScheduleStart& start = {});
  LRScheduler(LRScheduler&&) = default;
  LRScheduler& operator=(LRScheduler&&) = default;

  // Enters epoch 0, and further as `start` says.
  void start(const ScheduleStart& start);

  // The lr of a group in `epoch`, if it was `lr` in the epoch, or for 0, in the schedule, before.
  virtual double lr_at(size_t group, double lr, int64_t epoch) const;
  // The lr in epoch 0 if a SequentialLR, which had come to `lr`, goes on to this schedule.
  virtual double lr_after(size_t group, double lr) const;
  // Sets what else than the lr follows the epoch.
  virtual void on_epoch(int64_t epoch);
  // Writes and reads what state_dict() holds, under keys that begin with `prefix`.
  virtual void save(const std::string& prefix, ScheduleState& state) const;
  virtual void restore(const std::string& prefix, const ScheduleState& state);

  // The optimizer's. Throws std::invalid_argument if they are not as many as at first.
  std::vector<torch::optim::OptimizerParamGroup>& groups() const;
  // Throws std::invalid_argument with the schedule's name and `message`.
  [[noreturn]] void refuse(const std::string& message) const;

 private:
  friend class ChainedScheduler;
  friend class CyclicLR;
  friend class OneCycleLR;
  friend class ReduceLROnPlateau;
  friend class SequentialLR;

  virtual void advance();
  virtual void advance_by(double metric);
  virtual void begin();  // enters epoch 0
  void hand_over();      // likewise, in the midst of a SequentialLR
  void add_parts(const std::vector<class ScheduleSpec>& specs, const ScheduleStart& start);
  void reapply();  // calls on_epoch as the epochs so far have
  void enter(int64_t epoch, const std::vector<double>& lrs);

  std::string name_;
  OptimizerRef optimizer_;
  std::vector<double> initial_lrs_;  // for schedules that are made after this one
  std::vector<double> base_lrs_;
  std::vector<double> last_lr_;
  int64_t last_epoch_ = -1;
  std::vector<std::unique_ptr<LRScheduler>> parts_;  // of a schedule made of schedules
};

// A factor, for an epoch.
using LrLambda = std::function<double(int64_t)>;

struct LambdaLROptions {
  using Schedule = class LambdaLR;
  std::vector<LrLambda> lr_lambda = {};  // required; one, or one a group
};

// base_lr * lr_lambda(epoch).
class LambdaLR final : public LRScheduler {
 public:
  LambdaLR(OptimizerRef optimizer, const LambdaLROptions& options, const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  std::vector<LrLambda> lr_lambda_;
};

struct MultiplicativeLROptions {
  using Schedule = class MultiplicativeLR;
  std::vector<LrLambda> lr_lambda = {};  // required; one, or one a group
};

// lr * lr_lambda(epoch), from epoch 1 on.
class MultiplicativeLR final : public LRScheduler {
 public:
  MultiplicativeLR(OptimizerRef optimizer, const MultiplicativeLROptions& options,
                   const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  double lr_after(size_t group, double lr) const override;
  std::vector<LrLambda> lr_lambda_;
};

struct StepLROptions {
  using Schedule = class StepLR;
  int64_t step_size = 0;  // required; >= 1
  double gamma = 0.1;     // >= 0
};

// lr * gamma every `step_size` epochs.
class StepLR final : public LRScheduler {
 public:
  StepLR(OptimizerRef optimizer, StepLROptions options, const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  StepLROptions options_;
};

struct MultiStepLROptions {
  using Schedule = class MultiStepLR;
  std::vector<int64_t> milestones = {};  // each >= 0, in any order; twice counts twice
  double gamma = 0.1;                    // >= 0
};

// lr * gamma in the epochs of `milestones`.
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(OptimizerRef optimizer, MultiStepLROptions options, const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  MultiStepLROptions options_;
};

struct ConstantLROptions {
  using Schedule = class ConstantLR;
  double factor = 1.0 / 3;  // 0 to 1
  int64_t total_iters = 5;  // >= 1
};

// lr * factor in the first `total_iters` epochs.
class ConstantLR final : public LRScheduler {
 public:
  explicit ConstantLR(OptimizerRef optimizer, ConstantLROptions options = {},
                      const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  ConstantLROptions options_;
};

struct LinearLROptions {
  using Schedule = class LinearLR;
  double start_factor = 1.0 / 3;  // above 0, to 1
  double end_factor = 1;          // 0 to 1
  int64_t total_iters = 5;        // >= 1
};

// lr times what goes from `start_factor` to `end_factor`, linearly in `total_iters` epochs.
class LinearLR final : public LRScheduler {
 public:
  explicit LinearLR(OptimizerRef optimizer, LinearLROptions options = {},
                    const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  LinearLROptions options_;
};

struct ExponentialLROptions {
  using Schedule = class ExponentialLR;
  double gamma = std::numeric_limits<double>::quiet_NaN();  // required; >= 0
};

// lr * gamma every epoch.
class ExponentialLR final : public LRScheduler {
 public:
  ExponentialLR(OptimizerRef optimizer, ExponentialLROptions options,
                const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  ExponentialLROptions options_;
};

struct PolynomialLROptions {
  using Schedule = class PolynomialLR;
  int64_t total_iters = 5;  // >= 1
  double power = 1;         // >= 0
};

// lr times (1 - epoch / total_iters)^power.
class PolynomialLR final : public LRScheduler {
 public:
  explicit PolynomialLR(OptimizerRef optimizer, PolynomialLROptions options = {},
                        const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  PolynomialLROptions options_;
};

struct CosineAnnealingLROptions {
  using Schedule = class CosineAnnealingLR;
  int64_t T_max = 0;   // required; >= 1
  double eta_min = 0;  // >= 0
};

// Half a cosine down to `eta_min` in T_max epochs, then up again (Loshchilov and Hutter 2017,
// 1608.03983, without the restarts).
class CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(OptimizerRef optimizer, CosineAnnealingLROptions options,
                    const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  using Schedule = class CosineAnnealingWarmRestarts;
  int64_t T_0 = 0;     // required; >= 1, epochs before the first restart
  int64_t T_mult = 1;  // >= 1; the ratio of epochs before a restart to those before the last one
  double eta_min = 0;  // >= 0
};

// Half a cosine from base_lr down to `eta_min`, again and again (the same paper).
class CosineAnnealingWarmRestarts final : public LRScheduler {
 public:
  CosineAnnealingWarmRestarts(OptimizerRef optimizer, CosineAnnealingWarmRestartsOptions options,
                              const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  CosineAnnealingWarmRestartsOptions options_;
};

enum class AnnealStrategy { cos, linear };

struct OneCycleLROptions {
  using Schedule = class OneCycleLR;
  std::vector<double> max_lr = {};                        // required; >= 0
  std::optional<int64_t> total_steps = std::nullopt;      // >= 1; required, or else both of
  std::optional<int64_t> epochs = std::nullopt;           // >= 1
  std::optional<int64_t> steps_per_epoch = std::nullopt;  // >= 1
  double pct_start = 0.3;  // 0 to 1, the share of steps in which the lr rises
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  bool cycle_momentum = true;                  // as CyclicLR's
  std::vector<double> base_momentum = {0.85};  // >= 0; betas[0]: below 1
  std::vector<double> max_momentum = {0.95};   // likewise
  double div_factor = 25;                      // above 0; base_lr is max_lr / div_factor,
  double final_div_factor = 1e4;               // above 0; and the last lr this part of it
  bool three_phase = false;                    // falls to base_lr as fast as it rose, then on
};

// One rise and one fall (Smith and Topin 2017, 1708.07120). Step total_steps + 1 is refused. As in
// PyTorch, its base_lr is the initial lr of the schedules after it, too, in one made of several.
class OneCycleLR final : public LRScheduler {
 public:
  OneCycleLR(OptimizerRef optimizer, OneCycleLROptions options, const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  void on_epoch(int64_t epoch) override;
  void restore(const std::string& prefix, const ScheduleState& state) override;
  double anneal(int64_t epoch, double first, double peak, double last) const;
  OneCycleLROptions options_;
};

enum class CyclicMode { triangular, triangular2, exp_range };
enum class ScaleMode { cycle, iterations };

struct CyclicLROptions {
  using Schedule = class CyclicLR;
  std::vector<double> base_lr = {};                      // required; >= 0
  std::vector<double> max_lr = {};                       // required; >= 0
  int64_t step_size_up = 2000;                           // >= 1, epochs of a rise
  std::optional<int64_t> step_size_down = std::nullopt;  // >= 0; default: step_size_up
  CyclicMode mode = CyclicMode::triangular;     // heights: all one, halved a cycle, gamma^epoch
  double gamma = 1;                             // >= 0
  std::function<double(double)> scale_fn = {};  // instead of `mode`: the height, by
  ScaleMode scale_mode = ScaleMode::cycle;      // the cycle's number, from 1, or the epoch
  bool cycle_momentum = true;                   // of SGD and RMSprop; betas[0] of Adam and AdamW
  std::vector<double> base_momentum = {0.8};    // >= 0; betas[0]: below 1; where the lr is max_lr
  std::vector<double> max_momentum = {0.9};     // likewise; where it is base_lr
};

// Up and down between `base_lr` and `max_lr` (Smith 2017, 1506.01186).
class CyclicLR final : public LRScheduler {
 public:
  CyclicLR(OptimizerRef optimizer, CyclicLROptions options, const ScheduleStart& start = {});

 private:
  double lr_at(size_t group, double lr, int64_t epoch) const override;
  void on_epoch(int64_t epoch) override;
  double towards(double from, double to, int64_t epoch) const;
  CyclicLROptions options_;
};

enum class PlateauMode { min, max };
enum class ThresholdMode { rel, abs };

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::min;  // whether a better metric is smaller or greater, by
  double factor = 0.1;                  // >= 0, below 1
  int64_t patience = 10;                // >= 0
  double threshold = 1e-4;              // >= 0, times the best metric or
  ThresholdMode threshold_mode = ThresholdMode::rel;  // as it is
  int64_t cooldown = 0;                               // >= 0
  std::vector<double> min_lr = {0};                   // >= 0
  double eps = 1e-8;                                  // >= 0; smaller reductions are not made
};

// lr * factor after more than `patience` steps without a better metric, those of the `cooldown`
// after a reduction not counted. Not for SequentialLR and ChainedScheduler.
class ReduceLROnPlateau final : public LRScheduler {
 public:
  explicit ReduceLROnPlateau(OptimizerRef optimizer, ReduceLROnPlateauOptions options = {});
  // Refuses a metric that is not finite, too.
  void step(double metric) { LRScheduler::step(metric); }

 private:
  void advance() override;
  void advance_by(double metric) override;
  void save(const std::string& prefix, ScheduleState& state) const override;
  void restore(const std::string& prefix, const ScheduleState& state) override;
  bool is_better(double metric) const;
  ReduceLROnPlateauOptions options_;
  double best_;
  int64_t num_bad_epochs_ = 0, cooldown_counter_ = 0;
};

// How SequentialLR and ChainedScheduler make a schedule, on their optimizer and from its first lrs.
class ScheduleSpec {
 public:
  // From the options of a class: StepLROptions{.step_size = 30}.
  template <class Options, std::derived_from<LRScheduler> S = typename Options::Schedule>
  ScheduleSpec(Options options)
      : make([options = std::move(options)](OptimizerRef optimizer, const ScheduleStart& start) {
          return std::make_unique<S>(std::move(optimizer), options, start);
        }) {}
  // From a function that returns a schedule made with both of its arguments.
  template <class F, std::derived_from<LRScheduler> S =
                         std::invoke_result_t<const F&, OptimizerRef, const ScheduleStart&>>
    requires(!std::same_as<S, ReduceLROnPlateau>)
  ScheduleSpec(F function)
      : make([function = std::move(function)](OptimizerRef optimizer, const ScheduleStart& start) {
          return std::make_unique<S>(function(std::move(optimizer), start));
        }) {}

  std::function<std::unique_ptr<LRScheduler>(OptimizerRef, const ScheduleStart&)> make;
};

struct SequentialLROptions {
  using Schedule = class SequentialLR;
  std::vector<ScheduleSpec> schedulers = {};  // required; >= 1
  std::vector<int64_t> milestones = {};       // one fewer; >= 0, ascending
};

// One schedule after the other, changing at `milestones`, each from its own epoch 0.
//   {.schedulers = {LinearLROptions{}, ExponentialLROptions{.gamma = 0.9}}, .milestones = {5}}
class SequentialLR final : public LRScheduler {
 public:
  SequentialLR(OptimizerRef optimizer, SequentialLROptions options,
               const ScheduleStart& start = {});

 private:
  void advance() override;
  void begin() override;
  LRScheduler& part_at(int64_t epoch) const;
  std::vector<int64_t> milestones_;
};

struct ChainedSchedulerOptions {
  using Schedule = class ChainedScheduler;
  std::vector<ScheduleSpec> schedulers = {};  // required; >= 1
};

// All schedules in each step, one on the lrs of the other. If one refuses it, those before it have
// made it.
class ChainedScheduler final : public LRScheduler {
 public:
  ChainedScheduler(OptimizerRef optimizer, const ChainedSchedulerOptions& options,
                   const ScheduleStart& start = {});

 private:
  void advance() override;
  void begin() override;
};

template <class S>
concept SchedulerType = std::derived_from<S, LRScheduler>;

// The schedules of transformers: lr rises linearly from 0 in `num_warmup_steps` steps (>= 0), and
// from there to step `num_training_steps` (>= 0) ...
// ... stays, from the first step on.
LambdaLR get_constant_schedule(OptimizerRef optimizer, const ScheduleStart& start = {});
// ... stays.
LambdaLR get_constant_schedule_with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps,
                                           const ScheduleStart& start = {});
// ... falls to 0 linearly.
LambdaLR get_linear_schedule_with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps,
                                         int64_t num_training_steps,
                                         const ScheduleStart& start = {});
// ... makes `num_cycles` waves (>= 0) of a cosine: half a one falls to 0.
LambdaLR get_cosine_schedule_with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps,
                                         int64_t num_training_steps, double num_cycles = 0.5,
                                         const ScheduleStart& start = {});
// ... falls to 0 by half a cosine `num_cycles` times (>= 1).
LambdaLR get_cosine_with_hard_restarts_schedule_with_warmup(OptimizerRef optimizer,
                                                            int64_t num_warmup_steps,
                                                            int64_t num_training_steps,
                                                            int64_t num_cycles = 1,
                                                            const ScheduleStart& start = {});
// ... falls to `lr_end` (>= 0; below the lr of the optimizer's defaults(), which it is relative to)
// by a polynomial of degree `power` (>= 0).
LambdaLR get_polynomial_decay_schedule_with_warmup(OptimizerRef optimizer, int64_t num_warmup_steps,
                                                   int64_t num_training_steps, double lr_end = 1e-7,
                                                   double power = 1,
                                                   const ScheduleStart& start = {});
// ... falls as 1 / sqrt(1 + (step - num_warmup_steps) / timescale), without end. `timescale`: >= 1;
// default: num_warmup_steps, or 10000 if that is 0.
LambdaLR get_inverse_sqrt_schedule(OptimizerRef optimizer, int64_t num_warmup_steps,
                                   std::optional<int64_t> timescale = std::nullopt,
                                   const ScheduleStart& start = {});

}  // namespace drivetrain
