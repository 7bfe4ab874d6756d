// SPDX-License-Identifier: Apache-2.0
#include "training/schedule_cases.h"

#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace drivetrain {
namespace {

namespace optim = torch::optim;
using Cases = std::vector<ScheduleCase>;

auto of(const ScheduleSpec& spec) { return spec.make; }

auto of(const ReduceLROnPlateauOptions& options) {
  return [=](OptimizerRef optimizer, const ScheduleStart&) -> std::unique_ptr<LRScheduler> {
    return std::make_unique<ReduceLROnPlateau>(std::move(optimizer), options);
  };
}

double halves(int64_t n) { return 1.0 / static_cast<double>(1 + n / 30); }
double third(double x) { return 1 / (2 + x); }
LrLambda always(double factor) {
  return [=](int64_t) { return factor; };
}
LrLambda power(double factor) {
  return [=](int64_t n) { return std::pow(factor, n); };
}

void add_by_epoch(Cases& cases) {
  const LrLambda reference = [](int64_t n) { return 1 - static_cast<double>(n) / 10; };
  const LrLambda slowing = [](int64_t n) { return 1 - 1 / static_cast<double>(n + 3); };
  cases.push_back({.name = "lambda_reference",
                   .make = of(LambdaLROptions{.lr_lambda = {reference}}),
                   .lrs = {1.0, 0.5}});
  const Cases more = {
      {"lambda_a_group", of(LambdaLROptions{.lr_lambda = {power(0.95), halves}})},
      {"multiplicative", of(MultiplicativeLROptions{.lr_lambda = {always(0.97)}})},
      {"multiplicative_a_group", of(MultiplicativeLROptions{.lr_lambda = {slowing, always(0.99)}})},
      {"step", of(StepLROptions{.step_size = 30})},
      {"step_fast", of(StepLROptions{.step_size = 7, .gamma = 0.9}), "adamw"},
      {"multistep", of(MultiStepLROptions{.milestones = {80, 30, 80, 150}})},
      {"multistep_none", of(MultiStepLROptions{})},
      {"multistep_from_0", of(MultiStepLROptions{.milestones = {0, 5, 120}, .gamma = 0.5})},
      {"constant", of(ConstantLROptions{})},
      {"constant_long", of(ConstantLROptions{.factor = 0.25, .total_iters = 40})},
      {"linear", of(LinearLROptions{})},
      {"linear_long",
       of(LinearLROptions{.start_factor = 0.1, .end_factor = 0.9, .total_iters = 100})},
      {"linear_to_0",
       of(LinearLROptions{.start_factor = 1.0, .end_factor = 0.0, .total_iters = 60})},
      {"exponential", of(ExponentialLROptions{.gamma = 0.99}), "adam"},
      {"polynomial", of(PolynomialLROptions{})},
      {"polynomial_steep", of(PolynomialLROptions{.total_iters = 150, .power = 2.5})},
      {"polynomial_root", of(PolynomialLROptions{.total_iters = 180, .power = 0.5})},
      {"cosine", of(CosineAnnealingLROptions{.T_max = 50})},
      {"cosine_once", of(CosineAnnealingLROptions{.T_max = 200, .eta_min = 1e-3})},
      {"cosine_short", of(CosineAnnealingLROptions{.T_max = 7, .eta_min = 1e-3})},
      {"cosine_shortest", of(CosineAnnealingLROptions{.T_max = 1})},
      {"restarts", of(CosineAnnealingWarmRestartsOptions{.T_0 = 13})},
      {"restarts_longer",
       of(CosineAnnealingWarmRestartsOptions{.T_0 = 10, .T_mult = 2, .eta_min = 1e-4})},
      {"restarts_by_3", of(CosineAnnealingWarmRestartsOptions{.T_0 = 1, .T_mult = 3})}};
  cases.insert(cases.end(), more.begin(), more.end());
}

void add_one_cycle(Cases& cases) {
  const Cases more = {
      {"one_cycle", of(OneCycleLROptions{.max_lr = {0.5}, .total_steps = kRecordedSteps})},
      {"one_cycle_linear",
       of(OneCycleLROptions{.max_lr = {0.5, 0.2},
                            .total_steps = kRecordedSteps,
                            .anneal_strategy = AnnealStrategy::linear,
                            .base_momentum = {0.7, 0.8},
                            .max_momentum = {0.9, 0.99}}),
       "adamw"},
      {"one_cycle_three_phase",
       of(OneCycleLROptions{.max_lr = {0.5, 0.2},
                            .epochs = 10,
                            .steps_per_epoch = 21,
                            .div_factor = 10,
                            .final_div_factor = 100,
                            .three_phase = true}),
       "adam"},
      {"one_cycle_three_phase_linear",
       of(OneCycleLROptions{.max_lr = {1.0},
                            .total_steps = 230,
                            .pct_start = 0.2,
                            .anneal_strategy = AnnealStrategy::linear,
                            .cycle_momentum = false,
                            .three_phase = true})},
      {"one_cycle_falls",
       of(OneCycleLROptions{.max_lr = {0.3}, .total_steps = kRecordedSteps, .pct_start = 0}),
       "rmsprop"}};
  cases.insert(cases.end(), more.begin(), more.end());
}

void add_cyclic(Cases& cases) {
  const Cases more = {
      {"cyclic", of(CyclicLROptions{.base_lr = {0.01}, .max_lr = {0.1}, .step_size_up = 20})},
      {"cyclic_2",
       of(CyclicLROptions{.base_lr = {0.01, 0.02},
                          .max_lr = {0.1, 0.3},
                          .step_size_up = 15,
                          .step_size_down = 8,
                          .mode = CyclicMode::triangular2,
                          .base_momentum = {0.7},
                          .max_momentum = {0.95}}),
       "adamw"},
      {"cyclic_exp",
       of(CyclicLROptions{.base_lr = {0.01},
                          .max_lr = {0.1},
                          .step_size_up = 11,
                          .step_size_down = 30,
                          .mode = CyclicMode::exp_range,
                          .gamma = 0.99}),
       "adam"},
      {"cyclic_saw",
       of(CyclicLROptions{
           .base_lr = {0.01}, .max_lr = {0.1}, .step_size_up = 10, .step_size_down = 0}),
       "rmsprop"},
      {"cyclic_own_by_cycle", of(CyclicLROptions{.base_lr = {0.01},
                                                 .max_lr = {0.1},
                                                 .step_size_up = 9,
                                                 .scale_fn = third,
                                                 .scale_mode = ScaleMode::cycle})},
      {"cyclic_own_by_epoch",
       of(CyclicLROptions{.base_lr = {0.01},
                          .max_lr = {0.1},
                          .step_size_up = 9,
                          .scale_fn = third,
                          .scale_mode = ScaleMode::iterations,
                          .cycle_momentum = false}),
       "adamw"}};
  cases.insert(cases.end(), more.begin(), more.end());
}

void add_sequential(Cases& cases) {
  const auto add = [&](const char* name, std::vector<ScheduleSpec> parts,
                       std::vector<int64_t> milestones, const char* optimizer = "sgd") {
    cases.push_back(
        {name, of(SequentialLROptions{.schedulers = parts, .milestones = milestones}), optimizer});
  };
  add("sequential",
      {LinearLROptions{.start_factor = 0.1, .total_iters = 20},
       CosineAnnealingLROptions{.T_max = 180}},
      {20});
  add("sequential_three",
      {ConstantLROptions{.factor = 0.1, .total_iters = 9}, ExponentialLROptions{.gamma = 0.95},
       StepLROptions{.step_size = 10, .gamma = 0.5}},
      {12, 100});
  add("sequential_four",
      {PolynomialLROptions{.total_iters = 30}, MultiStepLROptions{.milestones = {0, 7}},
       MultiplicativeLROptions{.lr_lambda = {always(1.001)}},
       CosineAnnealingWarmRestartsOptions{.T_0 = 10, .T_mult = 2}},
      {25, 60, 110});
  add("sequential_skips",
      {StepLROptions{.step_size = 3}, LambdaLROptions{.lr_lambda = {power(0.95)}},
       ConstantLROptions{}, LinearLROptions{}},
      {0, 50, 50});
  add("sequential_one_cycle",
      {LinearLROptions{.start_factor = 0.1}, OneCycleLROptions{.max_lr = {0.4}, .total_steps = 120},
       ExponentialLROptions{.gamma = 0.9}},
      {10, 130}, "adamw");
  add("sequential_cyclic_first",
      {CyclicLROptions{.base_lr = {0.01}, .max_lr = {0.1}, .step_size_up = 20},
       ExponentialLROptions{.gamma = 0.98}},
      {90});
  add("sequential_chained",
      {ChainedSchedulerOptions{.schedulers = {ConstantLROptions{.factor = 0.5, .total_iters = 4},
                                              StepLROptions{.step_size = 9}}},
       ExponentialLROptions{.gamma = 0.99}},
      {40});
}

void add_chained(Cases& cases) {
  const auto add = [&](const char* name, std::vector<ScheduleSpec> parts) {
    cases.push_back({name, of(ChainedSchedulerOptions{.schedulers = parts})});
  };
  add("chained",
      {ConstantLROptions{.factor = 0.1, .total_iters = 20}, ExponentialLROptions{.gamma = 0.97}});
  add("chained_cosine", {LinearLROptions{.start_factor = 0.2, .total_iters = 30},
                         CosineAnnealingLROptions{.T_max = 70}});
  add("chained_three", {MultiplicativeLROptions{.lr_lambda = {always(0.99)}},
                        StepLROptions{.step_size = 40, .gamma = 0.5},
                        MultiStepLROptions{.milestones = {10, 20}, .gamma = 2.0},
                        PolynomialLROptions{.total_iters = 170}});
  const SequentialLROptions inner{.schedulers = {ConstantLROptions{.factor = 0.5, .total_iters = 4},
                                                 StepLROptions{.step_size = 9}},
                                  .milestones = {30}};
  add("chained_sequential", {inner, ExponentialLROptions{.gamma = 0.99}});
}

void add_on_plateau(Cases& cases) {
  const Cases more = {{"plateau", of(ReduceLROnPlateauOptions{}), "sgd", 1},
                      {"plateau_max",
                       of(ReduceLROnPlateauOptions{.mode = PlateauMode::max,
                                                   .factor = 0.5,
                                                   .patience = 3,
                                                   .threshold = 0.01,
                                                   .threshold_mode = ThresholdMode::abs,
                                                   .cooldown = 5,
                                                   .min_lr = {0.001, 0.0005}}),
                       "sgd", -1},
                      {"plateau_max_rel",
                       of(ReduceLROnPlateauOptions{.mode = PlateauMode::max,
                                                   .factor = 0.7,
                                                   .patience = 2,
                                                   .threshold = 0.05,
                                                   .cooldown = 2}),
                       "adamw", 1},
                      {"plateau_abs",
                       of(ReduceLROnPlateauOptions{.factor = 0.3,
                                                   .patience = 0,
                                                   .threshold = 0.02,
                                                   .threshold_mode = ThresholdMode::abs,
                                                   .min_lr = {1e-6},
                                                   .eps = 1e-5}),
                       "sgd", 1}};
  cases.insert(cases.end(), more.begin(), more.end());
}

void add_with_warmup(Cases& cases) {
  const auto add = [&](const char* name, auto function, const char* optimizer, auto... arguments) {
    cases.push_back({name, of([=](OptimizerRef o, const ScheduleStart& start) {
                       return function(std::move(o), arguments..., start);
                     }),
                     optimizer});
  };
  add("get_constant", get_constant_schedule, "sgd");
  add("get_constant_warmup", get_constant_schedule_with_warmup, "sgd", 33);
  add("get_linear", get_linear_schedule_with_warmup, "sgd", 20, 150);
  add("get_linear_at_once", get_linear_schedule_with_warmup, "sgd", 0, 200);
  add("get_cosine", get_cosine_schedule_with_warmup, "sgd", 20, 190, 0.5);
  add("get_cosine_waves", get_cosine_schedule_with_warmup, "sgd", 11, 150, 1.7);
  const auto hard_restarts = get_cosine_with_hard_restarts_schedule_with_warmup;
  add("get_hard_restarts", hard_restarts, "sgd", 20, 180, 3);
  add("get_hard_restarts_one", hard_restarts, "sgd", 5, 200, 1);
  const auto polynomial = get_polynomial_decay_schedule_with_warmup;
  add("get_polynomial", polynomial, "sgd", 20, 180, 1e-7, 1.0);
  add("get_polynomial_steep", polynomial, "adamw", 10, 150, 1e-3, 2.0);
  add("get_inverse_sqrt", get_inverse_sqrt_schedule, "sgd", 25, std::nullopt);
  add("get_inverse_sqrt_scale", get_inverse_sqrt_schedule, "sgd", 10, 50);
}

template <class O, class Options>
std::unique_ptr<optim::Optimizer> make(const std::vector<double>& lrs, const Options& defaults) {
  std::vector<optim::OptimizerParamGroup> groups;
  for (size_t i = 0; i < lrs.size(); ++i)
    groups.emplace_back(std::vector<torch::Tensor>{torch::zeros({1}, torch::requires_grad())});
  auto optimizer = std::make_unique<O>(std::move(groups), defaults);
  for (size_t i = 0; i < lrs.size(); ++i) optimizer->param_groups()[i].options().set_lr(lrs[i]);
  return optimizer;
}

double momentum(optim::OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<optim::SGDOptions*>(&options)) return sgd->momentum();
  if (auto* rms = dynamic_cast<optim::RMSpropOptions*>(&options)) return rms->momentum();
  if (auto* adam = dynamic_cast<optim::AdamOptions*>(&options)) return std::get<0>(adam->betas());
  return std::get<0>(dynamic_cast<optim::AdamWOptions&>(options).betas());
}

std::vector<double> unpack(std::istream& line,
                           const std::map<std::string, std::vector<double>>& seen) {
  std::vector<double> values;
  for (std::string run; line >> run;) {
    if (seen.contains(run)) return seen.at(run);
    char* rest = nullptr;
    const double value = std::strtod(run.c_str(), &rest);
    values.insert(values.end(), *rest == '*' ? std::atoi(rest + 1) : 1, value);
  }
  return values;
}

Recording read_recording() {
  std::ifstream file(DRIVETRAIN_GOLDEN "/schedules.txt");
  if (!file) throw std::runtime_error("cannot read " DRIVETRAIN_GOLDEN "/schedules.txt");
  Recording recording;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string name, series;
    line >> name >> series;
    if (name != "#") recording[name][series] = unpack(line, recording[name]);
  }
  return recording;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ScheduleCase& schedule) {
  return out << schedule.name;
}

std::vector<ScheduleCase> schedule_cases() {
  Cases cases;
  add_by_epoch(cases);
  add_one_cycle(cases);
  add_cyclic(cases);
  add_sequential(cases);
  add_chained(cases);
  add_on_plateau(cases);
  add_with_warmup(cases);
  return cases;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& kind,
                                                 const std::vector<double>& lrs) {
  if (kind == "rmsprop")
    return make<optim::RMSprop>(lrs, optim::RMSpropOptions(lrs[0]).momentum(0.9));
  if (kind == "adam") return make<optim::Adam>(lrs, optim::AdamOptions(lrs[0]));
  if (kind == "adagrad") return make<optim::Adagrad>(lrs, optim::AdagradOptions(lrs[0]));
  if (kind == "adamw") return make<optim::AdamW>(lrs, optim::AdamWOptions(lrs[0]));
  return make<optim::SGD>(lrs, optim::SGDOptions(lrs[0]).momentum(0.9));
}

std::map<std::string, double> rates(optim::Optimizer& optimizer) {
  std::map<std::string, double> values;
  auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    values["lr" + std::to_string(i)] = groups[i].options().get_lr();
    values["momentum" + std::to_string(i)] = momentum(groups[i].options());
  }
  return values;
}

void step(const ScheduleCase& schedule, LRScheduler& scheduler, int64_t number) {
  if (schedule.sign == 0) return scheduler.step();
  const double metric =
      1 / (1 + static_cast<double>(number) / 7) + static_cast<double>(number * 37 % 11) / 100;
  scheduler.step(schedule.sign * metric);
}

const Recording& recorded_schedules() {
  static const Recording recording = read_recording();
  return recording;
}

}  // namespace drivetrain
