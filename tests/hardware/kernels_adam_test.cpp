// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW on host memory, on every instruction set of this machine.
#include <ATen/ops/_fused_adamw.h>
#include <torch/torch.h>

#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "expect_error.h"
#include "hardware/kernels/adam.h"
#include "kernels_levels.h"

namespace drivetrain::kernels {
namespace {

namespace optim = torch::optim;
using Tensors = std::vector<at::Tensor>;

struct Types {
  at::ScalarType parameter, grad;
};

constexpr std::array kTypes = {Types{at::kFloat, at::kFloat},       Types{at::kFloat, at::kHalf},
                               Types{at::kFloat, at::kBFloat16},    Types{at::kHalf, at::kHalf},
                               Types{at::kBFloat16, at::kBFloat16}, Types{at::kHalf, at::kFloat},
                               Types{at::kBFloat16, at::kFloat}};

// Sizes around the widths of vectors and blocks, one that starts off every boundary, one that is
// dense but not contiguous.
Tensors random_tensors(at::ScalarType type, int seed) {
  torch::manual_seed(seed);
  Tensors all;
  for (const int64_t size : {0, 1, 7, 15, 16, 17, 1000, 16385, 70001})
    all.push_back(torch::randn({size}).to(type));
  all.push_back(torch::randn({50}).to(type).slice(0, 3));
  all.push_back(torch::randn({6, 5}).to(type).t());
  return all;
}

Tensors zeros_like(const Tensors& tensors, at::ScalarType type = at::kFloat) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(at::zeros_like(tensor, type));
  return all;
}

AdamTensors fresh(const Tensors& parameters, bool amsgrad) {
  AdamTensors t;
  t.parameters = parameters;
  t.exp_avgs = zeros_like(parameters);
  t.exp_avg_sqs = zeros_like(parameters);
  if (amsgrad) t.max_exp_avg_sqs = zeros_like(parameters);
  t.steps.assign(parameters.size(), 0);
  return t;
}

void step_with(const AdamKernel& kernel, AdamTensors& t, const AdamStep& step, Tensors grads) {
  t.grads = std::move(grads);
  for (int64_t& count : t.steps) ++count;
  kernel(t, step);
}

// The class in double, on the values and gradients that the kernel gets.
template <class Optimizer, class Options>
Tensors class_in_double(const Tensors& parameters, const std::vector<Tensors>& grads,
                        const Options& options, double div_scale) {
  Tensors all;
  for (const auto& parameter : parameters)
    all.push_back(parameter.to(at::kDouble).requires_grad_(true));
  Optimizer optimizer(all, options);
  for (const Tensors& each : grads) {
    for (size_t i = 0; i < all.size(); ++i)
      all[i].mutable_grad() = each[i].to(at::kDouble) / div_scale;
    optimizer.step();
  }
  return all;
}

double off_by(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

class AdamKernels : public testing::TestWithParam<CpuLevel> {
 protected:
  AdamKernel kernel_ = cpu_adam(loops_of(GetParam()));
};

INSTANTIATE_TEST_SUITE_P(Levels, AdamKernels, testing::ValuesIn(levels_here()), name_of_level);

// Recorded from ColossalAI's own test in double: one parameter of 1, gradients 0.1, -0.2, 0.3.
struct Golden {
  AdamStep step;
  std::array<double, 3> after;
};

TEST_P(AdamKernels, GoldenValues) {
  const Golden cases[] = {
      {{.decoupled = true}, {.999000000100, .999366103604, .999022862539}},
      {{.weight_decay = 0.1, .decoupled = true}, {.998900000100, .999166213604, .998723055918}},
      {{.weight_decay = 0.1, .decoupled = false}, {.999000000050, .998734049202, .998076112249}},
      {{.div_scale = 2}, {.999000000200, .999366103681, .999022862632}},
      {{.bias_correction = false}, {.996837732340, .998393520645, .996694397953}}};
  for (const Golden& golden : cases) {
    AdamTensors t = fresh({torch::ones({1})}, false);
    const double grads[] = {0.1, -0.2, 0.3};
    for (int i = 0; i < 3; ++i) {
      step_with(kernel_, t, golden.step, {torch::full({1}, grads[i])});
      EXPECT_NEAR(t.parameters[0].item<double>(), golden.after[i], 2e-7)
          << "case " << &golden - cases << ", step " << i + 1;
    }
  }
}

constexpr int kSteps = 5;

std::vector<Tensors> random_grads(at::ScalarType type) {
  std::vector<Tensors> all;
  for (int i = 0; i < kSteps; ++i) all.push_back(random_tensors(type, 100 + i));
  return all;
}

template <class Optimizer, class Options>
void expect_class(const AdamKernel& kernel, const AdamStep& step, const Options& options) {
  const Tensors parameters = random_tensors(at::kFloat, 1);
  const auto grads = random_grads(at::kFloat);
  const Tensors expected = class_in_double<Optimizer>(parameters, grads, options, step.div_scale);
  AdamTensors t = fresh(parameters, step.amsgrad);
  for (const Tensors& each : grads) step_with(kernel, t, step, each);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LT(off_by(t.parameters[i], expected[i]), 2e-6) << "tensor " << i;
}

TEST_P(AdamKernels, IsTorchsAdamW) {
  using Options = optim::AdamWOptions;
  expect_class<optim::AdamW>(kernel_, {.lr = 1e-2, .weight_decay = 1e-2}, Options(1e-2));
  expect_class<optim::AdamW>(
      kernel_, {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.7, .eps = 0.3, .weight_decay = 0.4},
      Options(0.1).betas({0.5, 0.7}).eps(0.3).weight_decay(0.4));
  expect_class<optim::AdamW>(kernel_, {.lr = 1e-2, .beta2 = 0.5, .amsgrad = true},
                             Options(1e-2).betas({0.9, 0.5}).weight_decay(0).amsgrad(true));
  expect_class<optim::AdamW>(kernel_, {.lr = 1e-2, .eps = 0.3, .div_scale = 12},
                             Options(1e-2).eps(0.3).weight_decay(0));
}

TEST_P(AdamKernels, IsTorchsAdam) {
  using Options = optim::AdamOptions;
  expect_class<optim::Adam>(kernel_, {.lr = 1e-2, .decoupled = false}, Options(1e-2));
  expect_class<optim::Adam>(kernel_,
                            {.lr = 1e-2,
                             .beta2 = 0.5,
                             .weight_decay = 0.4,
                             .decoupled = false,
                             .amsgrad = true,
                             .div_scale = 3},
                            Options(1e-2).betas({0.9, 0.5}).weight_decay(0.4).amsgrad(true));
}

// In float32 both are off the class in double by the same rounding.
TEST_P(AdamKernels, IsLibTorchsFusedKernel) {
  const Tensors parameters = random_tensors(at::kFloat, 1), theirs = random_tensors(at::kFloat, 1);
  AdamTensors t = fresh(parameters, false);
  const AdamTensors f = fresh(theirs, false);
  const auto grads = random_grads(at::kFloat);
  for (int i = 0; i < kSteps; ++i) {
    step_with(kernel_, t, {.lr = 1e-2, .weight_decay = 1e-2}, grads[i]);
    const Tensors steps(theirs.size(), torch::full({}, i + 1.0));
    at::_fused_adamw_(theirs, grads[i], f.exp_avgs, f.exp_avg_sqs, {}, steps, 1e-2, 0.9, 0.999,
                      1e-2, 1e-8, false, false);
  }
  for (size_t i = 0; i < theirs.size(); ++i) {
    EXPECT_LT(off_by(parameters[i], theirs[i]), 1e-6) << i;
    EXPECT_LT(off_by(t.exp_avgs[i], f.exp_avgs[i]), 1e-6) << i;
    EXPECT_LT(off_by(t.exp_avg_sqs[i], f.exp_avg_sqs[i]), 1e-6) << i;
  }
}

double tolerance_of(at::ScalarType type) {
  if (type == at::kHalf) return 1e-3;
  return type == at::kBFloat16 ? 4e-3 : 1e-5;
}

// One step, in double on the same inputs, then rounded once to the parameter's type: at most that
// one digit is lost.
TEST_P(AdamKernels, ServesEveryPairOfTypes) {
  for (const Types& types : kTypes) {
    const Tensors parameters = random_tensors(types.parameter, 1);
    const std::vector<Tensors> grads = {random_tensors(types.grad, 7)};
    const Tensors expected = class_in_double<optim::AdamW>(
        parameters, grads, optim::AdamWOptions(1e-1).weight_decay(0.1), 4);
    AdamTensors t = fresh(parameters, false);
    step_with(kernel_, t, {.lr = 0.1, .weight_decay = 0.1, .div_scale = 4}, grads[0]);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::allclose(parameters[i].to(at::kDouble), expected[i],
                                  tolerance_of(types.parameter), tolerance_of(types.parameter)))
          << types.parameter << " with " << types.grad << ", tensor " << i;
  }
}

void expect_same_bits(const AdamTensors& a, const AdamTensors& b, const char* what) {
  const auto compare = [&](const Tensors& x, const Tensors& y, const char* list) {
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_TRUE(same_bits(x[i], y[i])) << what << ": " << list << ' ' << i;
  };
  compare(a.parameters, b.parameters, "parameter");
  compare(a.exp_avgs, b.exp_avgs, "exp_avg");
  compare(a.exp_avg_sqs, b.exp_avg_sqs, "exp_avg_sq");
  compare(a.max_exp_avg_sqs, b.max_exp_avg_sqs, "max_exp_avg_sq");
  compare(a.copies, b.copies, "copy");
}

TEST_P(AdamKernels, TheBitsDependNeitherOnTheLevelNorOnTheThreads) {
  const AdamKernel scalar = cpu_adam(kScalarLoops);
  for (const Types& types : kTypes) {
    const auto grads = random_grads(types.grad);
    for (const bool amsgrad : {false, true})
      for (const bool decoupled : {false, true}) {
        const AdamStep step = {.lr = 0.1,
                               .weight_decay = 0.1,
                               .decoupled = decoupled,
                               .amsgrad = amsgrad,
                               .div_scale = 3};
        AdamTensors expected = fresh(random_tensors(types.parameter, 1), amsgrad);
        for (const Tensors& each : grads) step_with(scalar, expected, step, each);
        for (const int threads : {1, 3}) {
          const ScopedThreads scope(threads);
          AdamTensors t = fresh(random_tensors(types.parameter, 1), amsgrad);
          for (const Tensors& each : grads) step_with(kernel_, t, step, each);
          expect_same_bits(t, expected, c10::toString(types.parameter));
        }
      }
  }
}

// Every one of the 65536 values of a reduced type, as parameter and gradient: conversions in both
// directions against LibTorch's, NaNs, infinities and subnormals included.
TEST_P(AdamKernels, ReadsAndRoundsEveryReducedValueAsLibTorch) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const auto values =
        torch::arange(-32768, 32768, at::kInt).to(at::kShort).view(type).contiguous();
    AdamTensors t = fresh({values.clone()}, false);
    step_with(kernel_, t, {.lr = 0, .beta1 = 0}, {values});  // exp_avg becomes the gradient
    const auto gradient = values.to(at::kFloat);
    EXPECT_TRUE(torch::equal(t.exp_avgs[0].nan_to_num(7), gradient.nan_to_num(7)));
    const auto finite = values.isfinite();
    EXPECT_TRUE(torch::equal(t.parameters[0].masked_select(finite), values.masked_select(finite)));
    EXPECT_TRUE(t.parameters[0].masked_select(values.isnan()).isnan().all().item<bool>());
  }
}

TEST_P(AdamKernels, ALearningRateBelowZeroAscends) {
  AdamTensors t = fresh({torch::ones({20})}, false);
  step_with(kernel_, t, {.lr = -0.1}, {torch::full({20}, 3.0)});
  EXPECT_TRUE(torch::allclose(t.parameters[0], torch::full({20}, 1.1)));
}

// Where subnormal floats are flushed to zero, subnormal halves must not be.
TEST_P(AdamKernels, ReadsSubnormalHalvesThoughFloatsAreFlushed) {
  if (!at::globalContext().setFlushDenormal(true)) GTEST_SKIP() << "this processor cannot flush";
  AdamTensors t = fresh({torch::ones({17})}, false);
  const auto smallest = torch::ones({17}, at::kShort).view(at::kHalf);  // 2^-24
  step_with(kernel_, t, {.lr = 0, .beta1 = 0}, {smallest});
  at::globalContext().setFlushDenormal(false);
  EXPECT_TRUE(torch::equal(t.exp_avgs[0], torch::full({17}, 0x1p-24F)));
}

// Floats between two reduced values, rounded for the copy.
TEST_P(AdamKernels, WritesACopyRoundedAsLibTorch) {
  torch::manual_seed(5);
  const auto exponents = torch::randint(-30, 20, {40001}).to(at::kFloat);
  auto values = torch::randn({40001}) * exponents.exp2();
  values.slice(0, 0, 6).copy_(
      torch::tensor({65519.9F, 65520.0F, 2.98e-8F, 2.99e-8F, 1e-40F, 3e38F}));
  values[6] = std::numeric_limits<float>::infinity();
  for (const auto type : {at::kHalf, at::kBFloat16})
    for (const auto grad_type : {at::kFloat, at::kHalf, at::kBFloat16}) {
      AdamTensors t = fresh({values.clone()}, false);
      t.copies = {torch::empty({40001}, type)};
      step_with(kernel_, t, {.lr = 0}, {torch::ones({40001}, grad_type)});
      EXPECT_TRUE(same_bits(t.parameters[0], values));
      EXPECT_TRUE(same_bits(t.copies[0], values.to(type))) << type;
    }
}

TEST_P(AdamKernels, TheCopyIsOfTheNewParameter) {
  AdamTensors t = fresh(random_tensors(at::kFloat, 1), true);
  t.copies = zeros_like(t.parameters, at::kBFloat16);
  step_with(kernel_, t, {.lr = 0.1, .amsgrad = true}, random_tensors(at::kBFloat16, 2));
  for (size_t i = 0; i < t.parameters.size(); ++i)
    EXPECT_TRUE(same_bits(t.copies[i], t.parameters[i].to(at::kBFloat16))) << i;
}

TEST_P(AdamKernels, EachTensorHasItsOwnStepCount) {
  AdamTensors t = fresh({torch::ones({20}), torch::ones({20})}, false);
  step_with(kernel_, t, {.lr = 0.1}, {torch::ones({20}), torch::ones({20})});
  AdamTensors young = fresh({torch::ones({20}), t.parameters[1].clone()}, false);
  young.exp_avgs[1] = t.exp_avgs[1].clone();
  young.exp_avg_sqs[1] = t.exp_avg_sqs[1].clone();
  young.steps = {0, 1};
  step_with(kernel_, young, {.lr = 0.1}, {torch::ones({20}), torch::full({20}, 5.0)});
  step_with(kernel_, t, {.lr = 0.1}, {torch::ones({20}), torch::full({20}, 5.0)});
  EXPECT_TRUE(same_bits(young.parameters[1], t.parameters[1]));
  EXPECT_NEAR(young.parameters[0][0].item<double>(), 0.9, 1e-6);  // a first step moves by lr
}

TEST_P(AdamKernels, BackwardNoticesThatAParameterHasChanged) {
  const auto w = torch::ones({4}, torch::requires_grad());
  const auto loss = (w * w).sum();
  AdamTensors t = fresh({w.detach()}, false);
  step_with(kernel_, t, {}, {torch::ones({4})});
  EXPECT_ERROR(loss.backward(), c10::Error, "modified by an inplace operation");
}

class AdamRefusals : public testing::Test {
 protected:
  void expect(const char* text, const AdamStep& step = {}) {
    t_.steps.assign(t_.steps.size(), 1);
    EXPECT_ERROR(cpu_adam(kScalarLoops)(t_, step), HardwareError, text);
    EXPECT_TRUE(torch::equal(first_, torch::ones({2})));
  }

  at::Tensor first_ = torch::ones({2});
  AdamTensors t_ = [this] {
    AdamTensors t = fresh({first_, torch::ones({2})}, false);
    t.grads = {torch::ones({2}), torch::ones({2})};
    return t;
  }();
};

TEST_F(AdamRefusals, Options) {
  expect("adam: lr is inf; allowed: a finite number", {.lr = INFINITY});
  expect("adam: lr is nan; allowed: a finite number", {.lr = std::nan("")});
  expect("adam: beta1 is 1; allowed: 0 to below 1", {.beta1 = 1});
  expect("adam: beta2 is -0.5; allowed: 0 to below 1", {.beta2 = -0.5});
  expect("adam: eps is -1e-08; allowed: 0 or more", {.eps = -1e-8});
  expect("adam: weight_decay is -1; allowed: 0 or more", {.weight_decay = -1});
  expect("adam: div_scale is 0; allowed: a number above 0", {.div_scale = 0});
  expect("adam: div_scale is inf; allowed", {.div_scale = INFINITY});
}

TEST_F(AdamRefusals, Lists) {
  expect("adam: there are 0 max_exp_avg_sqs for 2 parameters", {.amsgrad = true});
  t_.max_exp_avg_sqs = zeros_like(t_.parameters);
  expect("adam: there are 2 max_exp_avg_sqs without amsgrad; allowed: an empty list");
  t_.max_exp_avg_sqs.clear();
  t_.copies = {torch::ones({2}, at::kHalf)};
  expect("adam: there are 1 copies for 2 parameters; allowed: as many as parameters");
  t_.copies.clear();
  t_.exp_avgs.pop_back();
  expect("adam: there are 1 exp_avgs for 2 parameters");
  t_.grads.pop_back();
  expect("adam: there are 1 gradients for 2 parameters");
}

TEST_F(AdamRefusals, Layouts) {
  t_.grads[1] = torch::ones({3});
  expect("the gradient of parameter 1 has the shape [3] and the strides [1], the parameter [2]");
  t_.grads[1] = torch::ones({4}).slice(0, 0, 4, 2);
  expect("the gradient of parameter 1 is on cpu or has gaps; allowed: a tensor in host memory");
  t_.grads[1] = torch::ones({2}, at::kMeta);
  expect("the gradient of parameter 1 is on meta or has gaps");
  t_.grads[1] = at::Tensor();
  expect("the gradient of parameter 1 is undefined");
  t_.grads[1] = torch::ones({2});
  t_.parameters[1] = torch::ones({1}).expand({2});
  expect("the value of parameter 1 is on cpu or has gaps");
}

TEST_F(AdamRefusals, Types) {
  t_.exp_avg_sqs[1] = torch::zeros({2}, at::kBFloat16);
  expect("the exp_avg_sq of parameter 1 is BFloat16; allowed: Float");
  t_.exp_avg_sqs[1] = torch::zeros({2});
  t_.parameters[1] = torch::ones({2}, at::kHalf);
  t_.grads[1] = torch::ones({2}, at::kBFloat16);
  expect("parameter 1 is Half with a gradient of BFloat16; allowed: Float with Float, Half or");
  t_.grads[1] = torch::ones({2}, at::kHalf);
  t_.copies = {torch::ones({2}, at::kHalf), torch::ones({2}, at::kHalf)};
  expect("parameter 1 is Half with a gradient of Half and a copy of Half");
  t_.copies = {torch::ones({2}, at::kHalf), torch::ones({2}, at::kDouble)};
  t_.parameters[1] = torch::ones({2});
  expect("parameter 1 is Float with a gradient of Half and a copy of Double");
}

TEST_F(AdamRefusals, StepsBelowOne) {
  t_.steps = {1, 0};
  EXPECT_ERROR(cpu_adam(kScalarLoops)(t_, {}), HardwareError, "adam: step 1 is 0; allowed: 1 or");
}

}  // namespace
}  // namespace drivetrain::kernels
