// SPDX-License-Identifier: Apache-2.0
// Prepared models in float16 and bfloat16: what runs in which type, and the loss scale in the loop.
#include <torch/script.h>
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "expect_error.h"
#include "ranks.h"
#include "scoped_env.h"
#include "small_net.h"

namespace drivetrain {
namespace {

using torch::Tensor;
constexpr float kInf = std::numeric_limits<float>::infinity();

AcceleratorOptions in(MixedPrecision precision, std::optional<World> world = std::nullopt) {
  return {.world = std::move(world), .mixed_precision = precision};
}

// Remembers what its layer computed in; returns nested values.
struct NestedImpl : torch::nn::Module {
  NestedImpl() : layer(register_module("layer", torch::nn::Linear(3, 2))) {}
  std::tuple<Tensor, std::map<std::string, Tensor>, int> forward(const Tensor& x) {
    const auto y = layer->forward(x);
    inside = y.scalar_type();
    return {y, {{"twice", y + y}, {"index", y.argmax(1)}}, 7};
  }
  torch::nn::Linear layer;
  torch::ScalarType inside = torch::kFloat;
};
TORCH_MODULE(Nested);

TEST(MixedPrecision, ForwardRunsInSixteenBitsAndGivesFloat32) {
  for (const auto& [precision, inside] : {std::pair{MixedPrecision::no, torch::kFloat},
                                          {MixedPrecision::bf16, torch::kBFloat16},
                                          {MixedPrecision::fp16, torch::kHalf}}) {
    Accelerator accelerator(in(precision));
    auto model = accelerator.prepare(Nested());
    const auto [y, more, number] = model->forward(here::ones({4, 3}));
    EXPECT_EQ(model->inside, inside);
    EXPECT_EQ(y.scalar_type(), torch::kFloat);
    EXPECT_EQ(more.at("twice").scalar_type(), torch::kFloat);
    EXPECT_EQ(more.at("index").scalar_type(), torch::kLong);
    EXPECT_EQ(number, 7);
    accelerator.backward(y.sum());
    EXPECT_EQ(model->layer->weight.grad().scalar_type(), torch::kFloat);
    EXPECT_EQ(accelerator.scaler() != nullptr, precision == MixedPrecision::fp16);
  }
}

TEST(MixedPrecision, OutputsStayAsTheyAreIfAskedTo) {
  Accelerator accelerator({.mixed_precision = MixedPrecision::bf16, .float32_outputs = false});
  auto model = accelerator.prepare(Nested());
  EXPECT_EQ(std::get<0>(model->forward(here::ones({4, 3}))).scalar_type(), torch::kBFloat16);
}

TEST(MixedPrecision, ScriptedModulesRunInItToo) {
  torch::jit::Module script("M");
  script.register_parameter("w", torch::ones({3, 2}), false);
  script.define(R"(
    def forward(self, x):
        y = torch.matmul(x, self.w)
        return y, [y], {"y": y}, (y, 1)
  )");
  Accelerator accelerator(in(MixedPrecision::bf16));
  auto model = accelerator.prepare(script);
  const auto results = model.forward({here::full({1, 3}, 1.0F / 3)}).toTuple()->elements();
  const auto expect_rounded = [](const Tensor& y) {
    EXPECT_EQ(y.scalar_type(), torch::kFloat);
    EXPECT_TRUE(y.equal(y.to(torch::kBFloat16).to(torch::kFloat)));
  };
  expect_rounded(results[0].toTensor());
  expect_rounded(results[1].toTensorVector()[0]);
  expect_rounded(results[2].toGenericDict().at("y").toTensor());
  expect_rounded(results[3].toTuple()->elements()[0].toTensor());
  EXPECT_EQ(results[3].toTuple()->elements()[1].toInt(), 1);
}

TEST(MixedPrecision, APartOfAForwardMayStayOutOfIt) {
  Accelerator accelerator(in(MixedPrecision::bf16));
  const auto x = here::ones({2, 2});
  const auto scope = accelerator.autocast();
  EXPECT_EQ(x.mm(x).scalar_type(), torch::kBFloat16);
  const auto off = accelerator.autocast(false);
  EXPECT_EQ(x.mm(x).scalar_type(), torch::kFloat);
}

// A step within an autocast scope of the user's: the next forward sees the new weights.
TEST(MixedPrecision, AStepIsSeenWithinAnAutocastScope) {
  Accelerator accelerator(in(MixedPrecision::bf16));
  auto model = accelerator.prepare(torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)));
  auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
  const auto scope = accelerator.autocast();
  const auto out = [&] { return torch::linear(here::ones({1, 2}), model->weight).sum(); };
  const float before = out().item<float>();
  model->weight.mutable_grad() = here::full({1, 2}, -4);
  optimizer.step();
  EXPECT_NEAR(out().item<float>(), before + 8, 0.1);
}

struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl() : weight(register_parameter("weight", torch::zeros({}))) {}
  Tensor forward(const Tensor& x) { return weight * x; }
  Tensor weight;
};
TORCH_MODULE(OneWeight);

// accelerate's test_optimizer.py: finite, infinite, infinite, finite.
TEST(MixedPrecision, AnOverflowSkipsTheStepAndSaysSo) {
  Accelerator accelerator(in(MixedPrecision::fp16));
  auto model = accelerator.prepare(OneWeight());
  auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 0.1));
  std::vector<StepOutcome> outcomes;
  std::vector<double> scales;
  for (const float slope : {1.0F, kInf, kInf, 1.0F}) {
    accelerator.backward(model->forward(here::full({}, slope)));
    scales.push_back(accelerator.scaler()->get_scale());
    const float before = model->weight.item<float>();
    optimizer.step();
    outcomes.push_back(optimizer.outcome());
    EXPECT_EQ(model->weight.item<float>() != before, outcomes.back() == StepOutcome::stepped);
    optimizer.zero_grad();
  }
  using enum StepOutcome;
  EXPECT_EQ(outcomes, (std::vector{stepped, skipped, skipped, stepped}));
  EXPECT_EQ(scales, (std::vector<double>{65536, 65536, 32768, 16384}));
  EXPECT_EQ(accelerator.scaler()->last_overflow()->parameter, "parameter weight");
}

// The loss scale is off when gradients are clipped, of those optimizers whose they are.
TEST(MixedPrecision, ClippingSeesGradientsWithoutTheScale) {
  Accelerator accelerator(in(MixedPrecision::fp16));
  auto first = accelerator.prepare(OneWeight()), second = accelerator.prepare(OneWeight());
  const auto make = [&](auto& model) {
    return accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
  };
  auto optimizer = make(first), other = make(second);
  accelerator.backward(first->forward(here::full({}, 3)) + second->forward(here::full({}, 5)));
  EXPECT_FLOAT_EQ(accelerator.clip_grad_norm_(first->parameters(), 1).item<float>(), 3);
  EXPECT_FLOAT_EQ(second->weight.grad().item<float>(), 5 * 65536);
  optimizer.step();
  other.step();
  EXPECT_NEAR(first->weight.item<float>(), -1, 1e-5);
  EXPECT_NEAR(second->weight.item<float>(), -5, 1e-5);
}

TEST(MixedPrecision, TheScaleIsUpdatedOnceForTwoOptimizers) {
  AcceleratorOptions options = in(MixedPrecision::fp16);
  options.scaler = std::make_shared<GradScaler>(GradScalerOptions{.growth_interval = 2});
  Accelerator accelerator(options);
  auto first = accelerator.prepare(OneWeight()), second = accelerator.prepare(OneWeight());
  auto one = accelerator.prepare(torch::optim::SGD(first->parameters(), 1));
  auto two = accelerator.prepare(torch::optim::SGD(second->parameters(), 1));
  for (int step = 0; step < 4; ++step) {
    accelerator.backward(first->forward(here::ones({})) + second->forward(here::ones({})));
    one.step();
    two.step();
    one.zero_grad();
    two.zero_grad();
  }
  // Three updates so far; the fourth comes with the next backward.
  EXPECT_EQ(accelerator.scaler()->get_scale(), 131072);
}

TEST(MixedPrecision, AccumulatesScaledGradients) {
  AcceleratorOptions options = in(MixedPrecision::fp16);
  options.gradient_accumulation.steps = 2;
  Accelerator accelerator(options);
  auto model = accelerator.prepare(OneWeight());
  auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
  for (const float slope : {1.0F, 3.0F, 1.0F, kInf, 1.0F, 1.0F}) {
    const auto micro_batch = accelerator.accumulate(model);
    accelerator.backward(model->forward(here::full({}, slope)));
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_FLOAT_EQ(model->weight.item<float>(), -3);
  EXPECT_EQ(accelerator.scaler()->get_scale(), 32768);
}

TEST(MixedPrecision, RefusesWhatItCannotDo) {
  EXPECT_ERROR(Accelerator({.scaler = std::make_shared<GradScaler>()}), std::invalid_argument,
               "a loss scaler without fp16");
  Accelerator accelerator(in(MixedPrecision::fp16));
  auto model = accelerator.prepare(OneWeight());
  auto lbfgs = accelerator.prepare(torch::optim::LBFGS(model->parameters(), 1));
  EXPECT_ERROR(lbfgs.step([&] { return model->forward(here::ones({})); }), std::invalid_argument,
               "step(closure) with a loss scale, which cannot change within a step");
}

TEST(MixedPrecision, TheEnvironmentAsksForIt) {
  const ScopedEnv precision("ACCELERATE_MIXED_PRECISION", "bf16");
  const ScopedEnv steps("DRIVETRAIN_GRADIENT_ACCUMULATION_STEPS", "3");
  const Accelerator accelerator;
  EXPECT_EQ(accelerator.mixed_precision(), MixedPrecision::bf16);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
  const Accelerator other(in(MixedPrecision::no));
  EXPECT_EQ(other.mixed_precision(), MixedPrecision::no);
}

// A small net learns as well as in float32, on several ranks, with gradients so small that float16
// loses them without the scale.
float loss_after_training(MixedPrecision precision, int ranks) {
  float loss = 0;
  run_ranks(ranks, [&](const World& world) {
    Accelerator accelerator(in(precision, world));
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

TEST(MixedPrecision, TrainsAsWellAsFloat32) {
  for (const int ranks : {1, 2}) {
    const float wanted = loss_after_training(MixedPrecision::no, ranks);
    EXPECT_LT(wanted, 0.3);
    EXPECT_NEAR(loss_after_training(MixedPrecision::bf16, ranks), wanted, 0.03);
    EXPECT_NEAR(loss_after_training(MixedPrecision::fp16, ranks), wanted, 0.03);
  }
}

}  // namespace
}  // namespace drivetrain
