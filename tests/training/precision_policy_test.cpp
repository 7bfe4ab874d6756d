// SPDX-License-Identifier: Apache-2.0
// Models that are kept in 16 bits, as an Accelerator with a MixedPrecisionPolicy trains them.
#include <torch/script.h>
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "expect_error.h"
#include "ranks.h"
#include "small_net.h"

namespace drivetrain {
namespace {

using torch::Tensor;
constexpr auto kBf16 = torch::kBFloat16;
// Half of what bfloat16 can add to 1.
constexpr float kTiny = 1.0F / 512;

AcceleratorOptions with(const MixedPrecisionPolicy& policy,
                        std::optional<World> world = std::nullopt) {
  return {.world = std::move(world), .mixed_precision_policy = policy};
}

struct OneWeightImpl : torch::nn::Module {
  explicit OneWeightImpl(double value = 0)
      : weight(register_parameter("weight", torch::full({}, value))) {}
  Tensor forward(const Tensor& x) {
    inside = x.scalar_type();
    return weight * x;
  }
  Tensor weight;
  torch::ScalarType inside = torch::kFloat;
};
TORCH_MODULE(OneWeight);

// One update by the gradient `slope`.
template <class Model, class Optimizer>
void update(Accelerator& accelerator, Model& model, Optimizer& optimizer, double slope) {
  accelerator.backward(model->forward(here::full({}, slope)));
  optimizer.step();
  optimizer.zero_grad();
}

TEST(PrecisionPolicy, ParametersAndInputsAreOfItsTypeOutputsAndGradientsFloat32) {
  for (const auto type : {kBf16, torch::kHalf}) {
    Accelerator accelerator(with({.param_dtype = type}));
    auto model = accelerator.prepare(OneWeight(1));
    const Tensor y = model->forward(here::full({}, 3.0));
    EXPECT_EQ(model->weight.scalar_type(), type);
    EXPECT_EQ(model->inside, type);
    EXPECT_EQ(y.scalar_type(), torch::kFloat);
    EXPECT_EQ(accelerator.scaler() != nullptr, type == torch::kHalf);
    accelerator.backward(y);
    EXPECT_EQ(model->weight.grad().scalar_type(), torch::kFloat);
    ASSERT_EQ(accelerator.master_weights(model).size(), 1);
    EXPECT_EQ(accelerator.master_weights(model)[0].first, "weight");
    EXPECT_EQ(accelerator.master_weights(model)[0].second.scalar_type(), torch::kFloat);
  }
}

// What is no tensor passes, references stay references, and nested tensors are converted.
struct ManyInputsImpl : torch::nn::Module {
  Tensor forward(Tensor& written, const std::map<std::string, Tensor>& nested, int64_t factor,
                 std::unique_ptr<int> moved, Tensor index) {
    types = {written.scalar_type(), nested.at("x").scalar_type(), index.scalar_type()};
    return nested.at("x") * factor * *moved + written;
  }
  std::vector<torch::ScalarType> types;
};
TORCH_MODULE(ManyInputs);

TEST(PrecisionPolicy, ConvertsInputsOfEveryKind) {
  Accelerator accelerator(with({.param_dtype = kBf16, .output_dtype = torch::kHalf}));
  auto model = accelerator.prepare(ManyInputs());
  Tensor written = here::ones({2});
  const auto y = model->forward(written, std::map<std::string, Tensor>{{"x", here::ones({2})}}, 3,
                                std::make_unique<int>(2), here::zeros({1}, torch::kLong));
  EXPECT_EQ(model->types, (std::vector{kBf16, kBf16, torch::kLong}));
  EXPECT_EQ(y.scalar_type(), torch::kHalf);
  EXPECT_EQ(y[0].item<float>(), 7);
}

// The oracle: float32 leaves that LibTorch's class steps on, rounded for each forward by hand.
template <class Optimizer, class Options>
void expect_as_by_hand(const Options& options) {
  torch::Generator generator = at::detail::createCPUGenerator(1);
  const Tensor x = here::moved(torch::randn({16, 6}, generator));
  const Tensor start = here::moved(torch::randn({3, 6}, generator));
  Tensor by_hand = start.clone();
  Optimizer reference(std::vector<Tensor>{by_hand}, options);

  torch::nn::Linear layer(torch::nn::LinearOptions(6, 3).bias(false));
  layer->weight.set_data(start.cpu().clone());
  Accelerator accelerator(with({.param_dtype = kBf16}));
  auto optimizer = accelerator.prepare(Optimizer(layer->parameters(), options));
  auto model = accelerator.prepare(layer);
  for (int step = 0; step < 20; ++step) {
    Tensor low = by_hand.detach().to(kBf16).requires_grad_(true);
    torch::linear(x.to(kBf16), low).to(torch::kFloat).tanh().sum().backward();
    by_hand.mutable_grad() = low.grad().to(torch::kFloat);
    reference.step();

    accelerator.backward(model->forward(x).tanh().sum());
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_TRUE(model->weight.equal(accelerator.master_weights(model)[0].second.to(kBf16)));
  }
  EXPECT_TRUE(torch::allclose(accelerator.master_weights(model)[0].second, by_hand, 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(by_hand, start, 1e-2, 1e-2));
}

TEST(PrecisionPolicy, EveryOptimizerStepsOnFloat32) {
  expect_as_by_hand<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  expect_as_by_hand<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
  expect_as_by_hand<torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9));
  expect_as_by_hand<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-2));
  expect_as_by_hand<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3));
}

TEST(PrecisionPolicy, SmallUpdatesAddUpInTheMasters) {
  const auto after_64 = [](const MixedPrecisionPolicy& policy) {
    Accelerator accelerator(with(policy));
    auto model = accelerator.prepare(OneWeight(1));
    auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
    for (int step = 0; step < 64; ++step) update(accelerator, model, optimizer, -kTiny);
    EXPECT_EQ(accelerator.master_weights(model).size(), policy.master_weights ? 1 : 0);
    return model->weight.item<float>();
  };
  EXPECT_EQ(after_64({.param_dtype = kBf16}), 1 + 64 * kTiny);
  // Each is lost in rounding ...
  EXPECT_EQ(after_64({.param_dtype = kBf16, .master_weights = false}), 1);
  // ... or left to chance: a binomial of 64 tries at a quarter, in steps of four.
  EXPECT_NEAR(
      after_64({.param_dtype = kBf16, .master_weights = false, .stochastic_rounding = true}),
      1 + 64 * kTiny, 20 * 4 * kTiny);
  EXPECT_NEAR(after_64({.param_dtype = kBf16, .stochastic_rounding = true}), 1 + 64 * kTiny,
              4 * kTiny);
}

TEST(PrecisionPolicy, MicroBatchesAddUpInFloat32) {
  for (const int size : {1, 2})
    run_ranks(size, [](const World& world) {
      AcceleratorOptions options = with({.param_dtype = kBf16}, world);
      options.gradient_accumulation.steps = 2;
      Accelerator accelerator(options);
      auto model = accelerator.prepare(OneWeight());
      auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
      for (const float slope : {2.0F, 2 * kTiny}) {
        const auto micro_batch = accelerator.accumulate(model);
        accelerator.backward(model->forward(here::full({}, slope)));
        optimizer.step();
      }
      EXPECT_EQ(model->weight.grad().item<float>(), 1 + kTiny);
      EXPECT_EQ(accelerator.master_weights(model)[0].second.item<float>(), -1 - kTiny);
    });
}

// Rank 0's gradient is 1 and rank 1's 2 kTiny, of which half is what bfloat16 cannot add to a half.
TEST(PrecisionPolicy, GradientsTravelInFloat32UnlessToldOtherwise) {
  const auto mean = [](const MixedPrecisionPolicy& policy) {
    float result = 0;
    run_ranks(2, [&](const World& world) {
      Accelerator accelerator(with(policy, world));
      auto model = accelerator.prepare(OneWeight());
      accelerator.backward(model->forward(here::full({}, world.is_main() ? 1 : kTiny * 2)));
      EXPECT_EQ(model->weight.grad().scalar_type(), torch::kFloat);
      if (world.is_main()) result = model->weight.grad().item<float>();
    });
    return result;
  };
  EXPECT_EQ(mean({.param_dtype = kBf16}), 0.5F + kTiny);
  EXPECT_EQ(mean({.param_dtype = kBf16, .reduce_dtype = kBf16}), 0.5F);
  EXPECT_EQ(mean({.param_dtype = kBf16, .reduce_dtype = torch::kHalf}), 0.5F + kTiny);
  EXPECT_EQ(mean({.reduce_dtype = kBf16}), 0.5F);
  EXPECT_EQ(mean({}), 0.5F + kTiny);
}

TEST(PrecisionPolicy, Float16SkipsOverflowsAndKeepsSmallGradients) {
  Accelerator accelerator(with({.param_dtype = torch::kHalf}));
  auto model = accelerator.prepare(OneWeight(1));
  auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1e4));
  update(accelerator, model, optimizer, std::numeric_limits<float>::infinity());
  EXPECT_EQ(optimizer.outcome(), StepOutcome::skipped);
  EXPECT_EQ(model->weight.item<float>(), 1);
  // Below what float16 holds without a scale of the loss.
  accelerator.backward(model->forward(here::ones({})) * 1e-8);
  EXPECT_NEAR(accelerator.clip_grad_norm_(model->parameters(), 1).item<float>(), 1e-8, 1e-11);
  optimizer.step();
  EXPECT_EQ(optimizer.outcome(), StepOutcome::stepped);
  EXPECT_NEAR(accelerator.master_weights(model)[0].second.item<float>(), 1 - 1e-4, 1e-6);
}

TEST(PrecisionPolicy, ScriptedModulesFollowIt) {
  torch::jit::Module script("M");
  script.register_parameter("w", torch::ones({3, 2}), false);
  script.register_buffer("b", torch::ones({2}));
  script.define(R"(
    def forward(self, x, more: Dict[str, Tensor]):
        return torch.matmul(x, self.w) + self.b + more["y"]
  )");
  Accelerator accelerator(with({.param_dtype = kBf16, .buffer_dtype = kBf16}));
  auto model = accelerator.prepare(script);
  c10::Dict<std::string, Tensor> more;
  more.insert("y", here::ones({1, 2}));
  const Tensor y = model.forward({here::full({1, 3}, 1.0), more}).toTensor();
  EXPECT_EQ(y.scalar_type(), torch::kFloat);
  EXPECT_EQ(model.attr("w").toTensor().scalar_type(), kBf16);
  EXPECT_EQ(y[0][0].item<float>(), 5);
}

TEST(PrecisionPolicy, WhatIsWrittenIntoAParameterHolds) {
  Accelerator accelerator(with({.param_dtype = kBf16}));
  auto model = accelerator.prepare(OneWeight(1));
  auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
  update(accelerator, model, optimizer, kTiny);
  {
    const torch::NoGradGuard no_grad;
    model->weight.fill_(3);
  }
  update(accelerator, model, optimizer, kTiny);
  EXPECT_EQ(accelerator.master_weights(model)[0].second.item<float>(), 3 - kTiny);
}

struct Failing : torch::optim::SGD {
  using SGD::SGD;
  Tensor step(LossClosure = nullptr) override {
    EXPECT_EQ(param_groups()[0].params()[0].scalar_type(), torch::kFloat);
    throw std::runtime_error("it failed");
  }
};

TEST(PrecisionPolicy, AStepThatFailsLeavesTheParametersAsTheyWere) {
  Accelerator accelerator(with({.param_dtype = kBf16}));
  auto model = accelerator.prepare(OneWeight(1));
  auto optimizer = accelerator.prepare(Failing(model->parameters(), 1.0));
  accelerator.backward(model->forward(here::ones({})));
  EXPECT_ERROR(optimizer.step(), std::runtime_error, "it failed");
  EXPECT_EQ(model->weight.scalar_type(), kBf16);
  EXPECT_EQ(model->weight.item<float>(), 1);
}

TEST(PrecisionPolicy, FrozenAndUnusedParametersAreLeftAlone) {
  Accelerator accelerator(with({.param_dtype = kBf16, .stochastic_rounding = true}));
  auto used = OneWeight(1);
  auto net = torch::nn::Sequential(used);
  net->push_back(OneWeight(1 + kTiny));
  net->push_back(OneWeight(1 + kTiny));
  net->parameters()[1].set_requires_grad(false);
  auto model = accelerator.prepare(net);
  auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 0.1));
  const auto before = copies_of(model->parameters());
  accelerator.backward(used->forward(here::ones({}, kBf16)));
  optimizer.step();
  const auto after = model->parameters();
  EXPECT_FALSE(after[0].equal(before[0]));
  EXPECT_TRUE(after[1].equal(before[1]));
  EXPECT_TRUE(after[2].equal(before[2]));
}

// Ranks' parameters start apart and get different gradients in every step.
TEST(PrecisionPolicy, RanksStayBitEqual) {
  for (const int size : {2, 3})
    for (const bool stochastic : {false, true}) {
      std::mutex mutex;
      std::vector<std::vector<Tensor>> all(size);
      run_ranks(size, [&](const World& world) {
        Accelerator accelerator(
            with({.param_dtype = kBf16, .stochastic_rounding = stochastic}, world));
        SmallNet net(4);
        {
          const torch::NoGradGuard no_grad;
          for (auto& parameter : net->parameters()) parameter.fill_(0.3 + 0.01 * world.rank());
        }
        auto model = accelerator.prepare(net);
        auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 0.01));
        for (int step = 0; step < 4; ++step) {
          const Tensor x = here::full({2, 4}, 0.1 * (world.rank() + 1) + step);
          accelerator.backward(model->forward(x).sum());
          optimizer.step();
          optimizer.zero_grad();
        }
        const std::lock_guard lock(mutex);
        for (const auto& [name, value] : accelerator.master_weights(model))
          all[world.rank()].push_back(value.cpu());
        for (const Tensor& parameter : model->parameters())
          all[world.rank()].push_back(parameter.detach().cpu());
      });
      for (const auto& other : all)
        for (size_t i = 0; i < other.size(); ++i) EXPECT_TRUE(other[i].equal(all[0][i])) << i;
    }
}

TEST(PrecisionPolicy, LocalSgdAveragesTheFloat32Values) {
  run_ranks(2, [](const World& world) {
    Accelerator accelerator(with({.param_dtype = kBf16}, world));
    auto model = accelerator.prepare(OneWeight(1));
    auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
    LocalSgd local(accelerator, model, {.steps = 1});
    update(accelerator, model, optimizer, world.is_main() ? -kTiny : -kTiny / 2);
    local.step();
    EXPECT_EQ(accelerator.master_weights(model)[0].second.item<float>(), 1 + kTiny * 0.75F);
    EXPECT_EQ(model->weight.item<float>(), 1);
  });
}

TEST(PrecisionPolicy, AfterAJoinAllRanksGoOnAlike) {
  run_ranks(2, [](const World& world) {
    Accelerator accelerator(with({.param_dtype = kBf16}, world));
    auto model = accelerator.prepare(OneWeight(1));
    auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
    accelerator.join_uneven_inputs(
        [&] {
          for (int step = 0; step < 1 + 2 * world.rank(); ++step)
            update(accelerator, model, optimizer, -kTiny);
        },
        model);
    update(accelerator, model, optimizer, -kTiny);
    const auto values = gather(world, accelerator.master_weights(model)[0].second);
    EXPECT_EQ(values[0].item<float>(), values[1].item<float>());
  });
}

float loss_after_training(const MixedPrecisionPolicy& policy, int ranks) {
  float loss = 0;
  run_ranks(ranks, [&](const World& world) {
    Accelerator accelerator(with(policy, world));
    torch::Generator generator = at::detail::createCPUGenerator(3);
    const auto x = here::moved(torch::randn({96, 4}, generator)), y = x.sum(1, true).sin();
    SmallNet net(4);
    for (auto& parameter : net->parameters()) {
      torch::NoGradGuard no_grad;
      parameter.copy_(torch::randn(parameter.sizes(), generator) * 0.5);
    }
    auto model = accelerator.prepare(net);
    auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 0.03));
    const int64_t share = 96 / world.world_size(), begin = world.rank() * share;
    Tensor last;
    for (int step = 0; step < 60; ++step) {
      last = torch::mse_loss(model->forward(x.slice(0, begin, begin + share)),
                             y.slice(0, begin, begin + share));
      accelerator.backward(last * 1e-4);
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto mean = accelerator.reduce(last.detach(), ReduceOp::mean);
    if (world.is_main()) loss = mean.item<float>();
  });
  return loss;
}

TEST(PrecisionPolicy, TrainsAsWellAsFloat32) {
  for (const int ranks : {1, 2, 3}) {
    const float wanted = loss_after_training({}, ranks);
    EXPECT_LT(wanted, 0.3);
    for (const MixedPrecisionPolicy& policy :
         {MixedPrecisionPolicy{.param_dtype = kBf16, .buffer_dtype = kBf16},
          MixedPrecisionPolicy{.param_dtype = torch::kHalf, .reduce_dtype = torch::kHalf},
          MixedPrecisionPolicy{
              .param_dtype = kBf16, .master_weights = false, .stochastic_rounding = true}})
      EXPECT_NEAR(loss_after_training(policy, ranks), wanted, 0.05);
  }
}

TEST(PrecisionPolicy, RefusesWhatItCannotDo) {
  EXPECT_ERROR(Accelerator({.mixed_precision = MixedPrecision::bf16,
                            .mixed_precision_policy = {.param_dtype = kBf16}}),
               std::invalid_argument, "asks for autocast");
  EXPECT_ERROR(Accelerator({.ddp = {.comm_hook = CommHookKind::bf16},
                            .mixed_precision_policy = {.reduce_dtype = kBf16}}),
               std::invalid_argument, "reduce_dtype and ddp a communication hook");
  EXPECT_ERROR(Accelerator({.scaler = std::make_shared<GradScaler>(),
                            .mixed_precision_policy = {.param_dtype = kBf16}}),
               std::invalid_argument, "a loss scaler without fp16");
  Accelerator accelerator(with({.param_dtype = kBf16}));
  auto model = accelerator.prepare(OneWeight());
  auto lbfgs = accelerator.prepare(torch::optim::LBFGS(model->parameters(), 1));
  EXPECT_ERROR(lbfgs.step([&] { return model->forward(here::ones({})); }), std::invalid_argument,
               "step(closure) with parameters that are kept in 16 bits");
}

}  // namespace
}  // namespace drivetrain
