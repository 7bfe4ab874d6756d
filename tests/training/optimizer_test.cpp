// SPDX-License-Identifier: Apache-2.0
// Prepared optimizers against the classes of torch::optim that they stand in for.
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/optimizer.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <tuple>

#include "hardware/kernels/cpu_level.h"
#include "scoped_env.h"
#include "test_device.h"

namespace drivetrain {
namespace {

namespace optim = torch::optim;
using Tensors = std::vector<torch::Tensor>;

// Odd sizes, a scalar, nothing, gaps in memory, other dtypes.
Tensors parameters(bool with_bfloat16) {
  torch::manual_seed(11);
  Tensors all = {here::randn({7, 3}), here::randn({}), here::randn({0, 4}), here::randn({5, 4}).t(),
                 here::randn({33}).to(torch::kDouble)};
  if (with_bfloat16) all.push_back(here::randn({8, 5}).to(torch::kBFloat16));
  for (auto& parameter : all) parameter.requires_grad_(true);
  return all;
}

Tensors copies(const Tensors& from) {
  Tensors all;
  for (const auto& parameter : from)
    all.push_back(parameter.detach().clone(torch::MemoryFormat::Preserve).requires_grad_(true));
  return all;
}

// The same gradients for both; the second parameter has none in every third step.
void set_gradients(const Tensors& a, const Tensors& b, int step) {
  torch::manual_seed(100 + step);
  for (size_t i = 0; i < a.size(); ++i) {
    const auto grad = here::randn(a[i].sizes()).to(a[i].scalar_type());
    const bool has_none = i == 1 && step % 3 == 2;
    a[i].mutable_grad() = has_none ? torch::Tensor() : grad.clone();
    b[i].mutable_grad() = has_none ? torch::Tensor() : grad.clone();
  }
}

void expect_close(const Tensors& ours, const Tensors& theirs) {
  for (size_t i = 0; i < ours.size(); ++i) {
    const double tolerance = ours[i].scalar_type() == torch::kBFloat16 ? 2e-2 : 1e-6;
    EXPECT_TRUE(torch::allclose(ours[i].to(torch::kDouble), theirs[i].to(torch::kDouble), tolerance,
                                tolerance))
        << "parameter " << i << ":\n"
        << ours[i] << "\nagainst\n"
        << theirs[i];
  }
}

// Two groups: the second with options of its own.
template <class O, class Options>
std::vector<optim::OptimizerParamGroup> groups(const Tensors& parameters, const Options& second) {
  std::vector<optim::OptimizerParamGroup> all;
  all.emplace_back(Tensors(parameters.begin(), parameters.begin() + 3));
  all.emplace_back(Tensors(parameters.begin() + 3, parameters.end()),
                   std::make_unique<Options>(second));
  return all;
}

template <class O, class Options>
void expect_equal_steps(const Options& first, const Options& second, bool with_bfloat16 = true) {
  const Tensors ours = parameters(with_bfloat16), theirs = copies(ours);
  PreparedOptimizer<O> prepared(O(groups<O>(ours, second), first));
  O plain(groups<O>(theirs, second), first);
  for (int step = 0; step < 12; ++step) {
    set_gradients(ours, theirs, step);
    prepared.step();
    plain.step();
  }
  expect_close(ours, theirs);
}

TEST(PreparedOptimizer, AdamWEqualsTheClass) {
  using Options = optim::AdamWOptions;
  expect_equal_steps<optim::AdamW>(Options(1e-2), Options(3e-3).weight_decay(0.3));
  expect_equal_steps<optim::AdamW>(Options(1e-2).amsgrad(true).eps(1e-3),
                                   Options(3e-3).betas({0.5, 0.7}).amsgrad(true));
}

TEST(PreparedOptimizer, AdamEqualsTheClass) {
  using Options = optim::AdamOptions;
  expect_equal_steps<optim::Adam>(Options(1e-2), Options(3e-3).weight_decay(0.3));
  expect_equal_steps<optim::Adam>(Options(1e-2).amsgrad(true), Options(3e-3).amsgrad(true));
}

TEST(PreparedOptimizer, AdamEqualsTheClassOnEveryInstructionSet) {
  using namespace kernels;
  for (const CpuLevel level : kCpuLevels) {
    if (!why_lacking(level).empty()) continue;
    const ScopedEnv forced("DRIVETRAIN_CPU_CAPABILITY", name_of(level));
    expect_equal_steps<optim::AdamW>(optim::AdamWOptions(1e-2),
                                     optim::AdamWOptions(3e-3).weight_decay(0.3).amsgrad(true));
    expect_equal_steps<optim::Adam>(optim::AdamOptions(1e-2).weight_decay(0.1),
                                    optim::AdamOptions(3e-3).amsgrad(true));
  }
}

// A kernel of the user's for Adam serves float32 parameters of its accelerator, and those alone.
TEST(PreparedOptimizer, StepsThroughTheBestRegisteredKernel) {
  using namespace kernels;
  std::vector<AdamStep> calls;
  size_t tensors = 0;
  const AdamKernel count = [&](const AdamTensors& t, const AdamStep& step) {
    calls.push_back(step);
    tensors += t.parameters.size();
  };
  const std::string backend = c10::DeviceTypeName(here::device().type(), /*lower_case=*/true);
  kernel_registry().add(
      {.operation = "adam", .name = "counting", .backend = backend, .priority = 99, .run = count});
  const Tensors all = parameters(/*with_bfloat16=*/true), before = copies(all);
  PreparedOptimizer<optim::Adam> optimizer(
      optim::Adam(all, optim::AdamOptions(0.5).betas({0.1, 0.2}).eps(0.3).weight_decay(0.4)));
  set_gradients(all, copies(all), 0);
  optimizer.step();
  kernel_registry().remove("adam", backend, "counting");
  ASSERT_EQ(calls.size(), 1);
  EXPECT_EQ(tensors, 4);
  EXPECT_EQ(std::tuple(calls[0].lr, calls[0].beta1, calls[0].beta2, calls[0].eps,
                       calls[0].weight_decay, calls[0].decoupled, calls[0].div_scale),
            std::tuple(0.5, 0.1, 0.2, 0.3, 0.4, false, 1.0));
  EXPECT_TRUE(torch::equal(all[0], before[0]));
  EXPECT_FALSE(torch::equal(all[4], before[4]));  // double
  EXPECT_FALSE(torch::equal(all[5], before[5]));  // bfloat16
}

TEST(PreparedOptimizer, SgdEqualsTheClass) {
  using Options = optim::SGDOptions;
  expect_equal_steps<optim::SGD>(Options(1e-2), Options(3e-3).weight_decay(0.3));
  for (const bool with_bfloat16 : {false, true}) {
    expect_equal_steps<optim::SGD>(Options(1e-2).momentum(0.9),
                                   Options(3e-3).momentum(0.5).dampening(0.2), with_bfloat16);
    expect_equal_steps<optim::SGD>(Options(1e-2).momentum(0.9).nesterov(true),
                                   Options(3e-3).momentum(0.9).weight_decay(0.1).nesterov(true),
                                   with_bfloat16);
  }
}

// The class is the only right reference here: see has_reduced_momentum in fused_step.cpp.
TEST(PreparedOptimizer, SgdMomentumInBfloat16EqualsTheClassBitForBit) {
  const Tensors ours = {here::randn({8, 5}).to(torch::kBFloat16).requires_grad_(true)};
  const Tensors theirs = copies(ours);
  PreparedOptimizer<optim::SGD> prepared(optim::SGD(ours, optim::SGDOptions(0.1).momentum(0.9)));
  optim::SGD plain(theirs, optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 12; ++step) {
    set_gradients(ours, theirs, step);
    prepared.step();
    plain.step();
  }
  EXPECT_TRUE(torch::equal(ours[0], theirs[0]));
}

TEST(PreparedOptimizer, AdagradEqualsTheClass) {
  using Options = optim::AdagradOptions;
  expect_equal_steps<optim::Adagrad>(Options(1e-2), Options(3e-3).weight_decay(0.3));
  expect_equal_steps<optim::Adagrad>(Options(1e-2).lr_decay(0.1).initial_accumulator_value(0.5),
                                     Options(3e-3).eps(1e-4));
}

TEST(PreparedOptimizer, RmspropStepsAsTheClass) {
  using Options = optim::RMSpropOptions;
  expect_equal_steps<optim::RMSprop>(Options(1e-2), Options(3e-3).momentum(0.9).centered(true));
}

TEST(PreparedOptimizer, LbfgsReturnsTheLossOfItsClosure) {
  const auto run = [](optim::Optimizer& optimizer, torch::Tensor x) {
    return optimizer.step([&] {
      optimizer.zero_grad();
      auto loss = (x * x).sum();
      loss.backward();
      return loss;
    });
  };
  const auto x = here::ones({3}, torch::requires_grad()),
             y = here::ones({3}, torch::requires_grad());
  PreparedOptimizer<optim::LBFGS> prepared(optim::LBFGS({x}, optim::LBFGSOptions(0.1)));
  optim::LBFGS plain({y}, optim::LBFGSOptions(0.1));
  EXPECT_FLOAT_EQ(run(prepared, x).item<float>(), run(plain, y).item<float>());
  EXPECT_TRUE(torch::equal(x, y));
}

TEST(PreparedOptimizer, RunsAClosureWithGradientsOnce) {
  const auto x = here::ones({3}, torch::requires_grad());
  PreparedOptimizer<optim::SGD> optimizer(optim::SGD({x}, 0.5));
  torch::NoGradGuard no_grad;
  int calls = 0;
  const auto loss = optimizer.step([&] {
    ++calls;
    auto sum = (x * x).sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(loss.item<float>(), 3);
  EXPECT_TRUE(torch::equal(x, here::zeros({3})));
}

TEST(PreparedOptimizer, SparseGradientsTakeTheClassesOwnStep) {
  if (!here::is_cpu()) GTEST_SKIP() << "sparse tensors are not simulated";
  const auto ours = here::ones({4, 2}, torch::requires_grad());
  const auto theirs = here::ones({4, 2}, torch::requires_grad());
  PreparedOptimizer<optim::SGD> prepared(optim::SGD({ours}, 0.5));
  optim::SGD plain({theirs}, 0.5);
  for (const auto& parameter : {ours, theirs})
    parameter.mutable_grad() =
        torch::sparse_coo_tensor(here::tensor({{1, 3}}), here::ones({2, 2}), {4, 2});
  prepared.step();
  plain.step();
  EXPECT_TRUE(torch::equal(ours, theirs));
}

TEST(PreparedOptimizer, StateSurvivesSavingIntoTheClass) {
  const Tensors ours = {here::ones({3}, torch::requires_grad())}, theirs = copies(ours);
  PreparedOptimizer<optim::AdamW> prepared(optim::AdamW(ours, 0.1));
  set_gradients(ours, theirs, 0);
  prepared.step();
  std::stringstream file;
  torch::save(prepared, file);
  theirs[0].data().copy_(ours[0].data());
  optim::AdamW plain(theirs, 0.1);
  torch::load(plain, file);
  for (int step = 1; step < 4; ++step) {
    set_gradients(ours, theirs, step);
    prepared.step();
    plain.step();
  }
  expect_close(ours, theirs);
}

TEST(PreparedOptimizer, MovesATiedParameterOnce) {
  const auto x = here::ones({1}, torch::requires_grad());
  PreparedOptimizer<optim::SGD> optimizer(optim::SGD({x, x}, 1.0));
  x.mutable_grad() = here::ones({1});
  optimizer.step();
  EXPECT_EQ(x.item<float>(), 0);
  EXPECT_EQ(optimizer.param_groups()[0].params().size(), 1);
}

TEST(PreparedOptimizer, ZeroGradServesGradientsThatAreViews) {
  const auto chunk = here::ones({6});
  const auto x = here::ones({3}, torch::requires_grad());
  PreparedOptimizer<optim::SGD> optimizer(optim::SGD({x}, 1.0));
  x.mutable_grad() = chunk.slice(0, 0, 3);
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_EQ(chunk.sum().item<float>(), 3);
  optimizer.zero_grad();
  EXPECT_FALSE(x.grad().defined());
}

TEST(PreparedOptimizer, HonoursAGroupsLearningRateSetAfterwards) {
  const auto x = here::ones({1}, torch::requires_grad()),
             y = here::ones({1}, torch::requires_grad());
  std::vector<optim::OptimizerParamGroup> both;
  both.emplace_back(Tensors{x});
  both.emplace_back(Tensors{y});
  PreparedOptimizer<optim::SGD> optimizer(optim::SGD(both, 0.5));
  optimizer.param_groups()[1].options().set_lr(0.001);
  for (const auto& parameter : {x, y}) parameter.mutable_grad() = here::ones({1});
  optimizer.step();
  EXPECT_FLOAT_EQ(x.item<float>(), 0.5F);
  EXPECT_FLOAT_EQ(y.item<float>(), 0.999F);
}

TEST(PreparedOptimizer, IsWhatASchedulerTakes) {
  const auto x = here::ones({1}, torch::requires_grad());
  PreparedOptimizer<optim::SGD> optimizer(optim::SGD({x}, 1.0));
  optim::StepLR schedule(optimizer, /*step_size=*/1, /*gamma=*/0.1);
  schedule.step();
  schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
}

}  // namespace
}  // namespace drivetrain
