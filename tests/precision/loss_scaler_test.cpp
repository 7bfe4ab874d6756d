// SPDX-License-Identifier: Apache-2.0
// Loss scalers: the scales that they go through, and what they do to gradients and steps.
#include <torch/torch.h>

#include <drivetrain/precision.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "expect_error.h"
#include "grad_scaler_golden.h"
#include "test_device.h"

namespace drivetrain {
namespace {

using torch::Tensor;
constexpr float kInf = std::numeric_limits<float>::infinity();

// One parameter with SGD of learning rate 1, so that the parameter falls by what the step saw.
struct Training {
  Tensor parameter = here::zeros({2}).requires_grad_();
  torch::optim::SGD optimizer{{parameter}, torch::optim::SGDOptions(1)};

  void set_gradient(float value) { parameter.mutable_grad() = here::full({2}, value); }
  float value() const { return parameter[1].item<float>(); }
};

// The scale at the start and after each update; '1' in the pattern is an overflow.
std::vector<double> scales_of(LossScaler& scaler, const std::string& pattern) {
  Training training;
  std::vector<double> scales = {scaler.get_scale()};
  for (const char c : pattern) {
    training.set_gradient(c == '1' ? kInf : 1);
    scaler.step(training.optimizer);
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  return scales;
}

TEST(GradScaler, HasTorchAmpsScales) {
  for (const RecordedScales& recorded : kRecordedScales) {
    GradScaler scaler(recorded.options);
    EXPECT_EQ(scales_of(scaler, recorded.pattern), recorded.scales) << recorded.pattern;
  }
}

// ColossalAI's sequences.
TEST(DynamicGradScaler, HasColossalAisScales) {
  using Options = DynamicGradScalerOptions;
  const auto expect = [](const Options& options, const char* pattern, std::vector<double> scales) {
    DynamicGradScaler scaler(options);
    EXPECT_EQ(scales_of(scaler, pattern), scales) << pattern;
  };
  expect({}, "1111", {65536, 65536, 32768, 16384, 8192});
  expect({.initial_scale = 8, .hysteresis = 1, .min_scale = 2}, "111", {8, 4, 2, 2});
  expect({.initial_scale = 8, .hysteresis = 0}, "11", {8, 4, 2});
  expect({.initial_scale = 4, .growth_interval = 3, .max_scale = 8}, "000000",
         {4, 4, 4, 8, 8, 8, 8});
  expect({.initial_scale = 16, .growth_interval = 3, .min_scale = 1, .max_scale = 64}, "1000110001",
         {16, 16, 16, 16, 32, 32, 16, 16, 16, 32, 32});
  expect({.initial_scale = 1024, .growth_interval = 3}, "1010100011",
         {1024, 1024, 1024, 512, 512, 256, 256, 256, 512, 512, 256});
  expect({.initial_scale = 1024, .hysteresis = 3, .min_scale = 1}, "11111",
         {1024, 1024, 1024, 512, 256, 128});
  expect({.initial_scale = 4, .min_scale = 2}, "11111", {4, 4, 2, 2, 2, 2});
  expect({.initial_scale = 0x1p31, .growth_interval = 1, .max_scale = 0x1p32}, "00",
         {0x1p31, 0x1p32, 0x1p32});
}

// Where upstream comes to infinity, and to 0 whose inverse is infinite.
TEST(LossScaler, NeverComesToZeroOrInfinity) {
  DynamicGradScaler up({.initial_scale = 0x1p125, .growth_interval = 1});
  EXPECT_EQ(scales_of(up, "000"), (std::vector<double>{0x1p125, 0x1p126, 0x1p126, 0x1p126}));
  GradScaler also_up({.init_scale = 0x1p125, .growth_interval = 1});
  EXPECT_EQ(scales_of(also_up, "00").back(), 0x1p126);
  DynamicGradScaler down({.initial_scale = 0x1p-125, .hysteresis = 1});
  EXPECT_EQ(scales_of(down, "111").back(), 0x1p-126);
  GradScaler also_down({.init_scale = 0x1p-125});
  EXPECT_EQ(scales_of(also_down, "111").back(), 0x1p-126);
}

TEST(ConstantGradScaler, KeepsItsScaleAndSkips) {
  ConstantGradScaler scaler(8);
  Training training;
  training.set_gradient(kInf);
  EXPECT_EQ(scaler.step(training.optimizer), StepOutcome::skipped);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8);
  EXPECT_EQ(training.value(), 0);
}

// Each update falls by the true gradient, 1, whatever the scale has become: it is taken off with
// the scale that the loss had, before the scale changes.
TEST(LossScaler, UnscalesWithTheScaleOfTheLoss) {
  DynamicGradScaler scaler({.initial_scale = 4, .growth_interval = 2});
  Training training;
  for (int step = 1; step <= 6; ++step) {
    training.optimizer.zero_grad();
    scaler.scale(training.parameter.sum()).backward();
    scaler.unscale_(training.optimizer);
    EXPECT_FLOAT_EQ(training.parameter.grad().norm().item<float>(), std::sqrt(2.0F));
    EXPECT_EQ(scaler.step(training.optimizer), StepOutcome::stepped);
    scaler.update();
    EXPECT_EQ(training.value(), -step);
  }
  EXPECT_EQ(scaler.get_scale(), 32);
}

TEST(LossScaler, SkipsWhatIsNotFiniteAndNamesTheFirst) {
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    GradScaler scaler;
    Tensor fine = here::zeros({3}).requires_grad_(), broken = here::zeros({4}).requires_grad_();
    Tensor unused = here::zeros({1}).requires_grad_(), empty = here::zeros({0}).requires_grad_();
    torch::optim::SGD optimizer({fine, unused, empty, broken}, 1);
    fine.mutable_grad() = here::ones({3});
    empty.mutable_grad() = here::ones({0});
    broken.mutable_grad() = here::ones({4});
    broken.mutable_grad()[3] = bad;
    EXPECT_EQ(scaler.step(optimizer), StepOutcome::skipped);
    ASSERT_TRUE(scaler.last_overflow());
    EXPECT_EQ(scaler.last_overflow()->parameter, "parameter 3 of group 0 of shape [4]");
    EXPECT_EQ(scaler.last_overflow()->scale, 65536);
    EXPECT_EQ(fine.sum().item<float>(), 0);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32768);
  }
}

TEST(LossScaler, IsUpdatedOnceHoweverManyOptimizersStep) {
  GradScaler scaler({.init_scale = 16, .growth_interval = 2});
  Training fine, broken;
  fine.set_gradient(16);
  broken.set_gradient(kInf);
  EXPECT_EQ(scaler.step(fine.optimizer), StepOutcome::stepped);
  EXPECT_EQ(scaler.step(broken.optimizer), StepOutcome::skipped);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8);
  EXPECT_EQ(fine.value(), -1);
  EXPECT_EQ(broken.value(), 0);
}

TEST(LossScaler, TakesSparseAndDoubleGradientsAndOnesWithGaps) {
  GradScaler scaler({.init_scale = 4});
  std::vector<Tensor> all = {here::zeros({3}, torch::kDouble), here::zeros({4, 3}).t()};
  for (auto& parameter : all) {
    parameter.requires_grad_();
    parameter.mutable_grad() = torch::full_like(parameter.detach(), 8);
  }
  all[1].mutable_grad() = here::full({6, 4}, 8.0).slice(0, 0, 6, 2);
  if (here::is_cpu()) {
    all.push_back(torch::zeros({5, 2}).requires_grad_());
    const auto rows = torch::tensor({{1, 3}}, torch::kLong);
    all[2].mutable_grad() = torch::sparse_coo_tensor(rows, torch::full({2, 2}, 8.0F), {5, 2});
  }
  torch::optim::SGD optimizer(all, 1);
  scaler.unscale_(optimizer);
  EXPECT_TRUE(all[0].grad().equal(here::full({3}, 2.0, torch::kDouble)));
  EXPECT_TRUE(all[1].grad().equal(here::full({3, 4}, 2.0)));
  if (here::is_cpu()) {
    EXPECT_EQ(all[2].grad().to_dense().sum().item<float>(), 8);
  }
}

TEST(LossScaler, ScalesALossOfSixteenBitsInFloat32) {
  const GradScaler scaler;
  const auto loss = here::full({}, 100, torch::kHalf);  // times 65536 it is infinite in float16
  EXPECT_EQ(scaler.scale(loss).item<float>(), 6553600);
  EXPECT_EQ(scaler.scale(here::ones({}, torch::kDouble)).scalar_type(), torch::kDouble);
}

TEST(LossScaler, RefusesCallsOutOfTurn) {
  GradScaler scaler;
  Training training;
  EXPECT_ERROR(scaler.update(), std::invalid_argument, "update() without a step since the last");
  training.set_gradient(1);
  scaler.unscale_(training.optimizer);
  EXPECT_ERROR(scaler.unscale_(training.optimizer), std::invalid_argument,
               "unscale_() was called twice for one optimizer; allowed: once between two");
  scaler.step(training.optimizer);
  EXPECT_ERROR(scaler.step(training.optimizer), std::invalid_argument,
               "an optimizer stepped twice on gradients of one scale");
  Training reduced;
  reduced.parameter.set_data(reduced.parameter.to(torch::kHalf));
  reduced.parameter.mutable_grad() = here::ones({2}, torch::kHalf);
  EXPECT_ERROR(scaler.unscale_(reduced.optimizer), std::invalid_argument,
               "the gradient of parameter 0 of group 0 of shape [2] is float16");
}

TEST(LossScaler, RefusesOptionsOutOfRange) {
  const auto refused = [](const GradScalerOptions& options, const char* message) {
    EXPECT_ERROR(GradScaler{options}, std::invalid_argument, message);
  };
  refused({.init_scale = 0}, "the loss scale is 0; allowed: 2^-126 to 2^126");
  refused({.init_scale = -1}, "the loss scale is -1");
  refused({.init_scale = kInf}, "the loss scale is inf");
  refused({.init_scale = std::nan("")}, "the loss scale is nan");
  refused({.growth_factor = 1}, "growth_factor is 1; allowed: above 1");
  refused({.growth_factor = kInf}, "growth_factor is inf");
  refused({.backoff_factor = 1}, "backoff_factor is 1; allowed: above 0 and below 1");
  refused({.backoff_factor = 0}, "backoff_factor is 0");
  refused({.growth_interval = 0}, "growth_interval is 0; allowed: 1 or more");
  const auto dynamic = [](const DynamicGradScalerOptions& options, const char* message) {
    EXPECT_ERROR(DynamicGradScaler{options}, std::invalid_argument, message);
  };
  dynamic({.hysteresis = -1}, "hysteresis is -1; allowed: 0 or more");
  dynamic({.initial_scale = 8, .min_scale = 9}, "min_scale is 9; allowed: 2^-126 to the scale");
  dynamic({.min_scale = 0}, "min_scale is 0");
  dynamic({.initial_scale = 8, .max_scale = 7}, "max_scale is 7; allowed: the scale to 2^126");
  EXPECT_ERROR(ConstantGradScaler(0), std::invalid_argument, "the loss scale is 0");
}

// Stopped at any point and taken up by another object, the scales go on as they would have.
template <class Scaler, class Options>
void expect_resumes(const Options& options) {
  const std::string pattern = "1000110001010000";
  Scaler whole(options);
  const auto wanted = scales_of(whole, pattern);
  for (size_t stop = 0; stop <= pattern.size(); ++stop) {
    Scaler first(options), second{Options{}};
    scales_of(first, pattern.substr(0, stop));
    second.load_state_dict(first.state_dict());
    const auto rest = scales_of(second, pattern.substr(stop));
    EXPECT_EQ(rest, std::vector<double>(wanted.begin() + static_cast<int64_t>(stop), wanted.end()));
  }
}

TEST(LossScaler, ItsStateIsWhole) {
  expect_resumes<GradScaler>(
      GradScalerOptions{.init_scale = 64, .growth_factor = 3, .growth_interval = 3});
  expect_resumes<DynamicGradScaler>(DynamicGradScalerOptions{.initial_scale = 64,
                                                             .growth_interval = 3,
                                                             .hysteresis = 3,
                                                             .min_scale = 8,
                                                             .max_scale = 256});
  ConstantGradScaler from(3), to(4);
  to.load_state_dict(from.state_dict());
  EXPECT_EQ(to.get_scale(), 3);
}

TEST(LossScaler, RefusesAStateThatDoesNotFitAndKeepsItsOwn) {
  GradScaler scaler;
  const ScalerState good = scaler.state_dict();
  const auto refused = [&](const std::function<void(ScalerState&)>& spoil, const char* message) {
    ScalerState state = good;
    state["scale"] = 2;
    spoil(state);
    EXPECT_ERROR(scaler.load_state_dict(state), std::invalid_argument, message);
    EXPECT_EQ(scaler.state_dict(), good);
  };
  refused([](auto& state) { state.erase("_growth_tracker"); }, "has no \"_growth_tracker\"");
  refused([](auto& state) { state["hysteresis"] = 2; }, "has \"hysteresis\", which this scaler");
  refused([](auto& state) { state["scale"] = 0; }, "scale is 0; allowed: 2^-126");
  refused([](auto& state) { state["growth_interval"] = 1.5; }, "growth_interval is 1.5");
  refused([](auto& state) { state["_growth_tracker"] = -1; }, "_growth_tracker is -1");
  refused([](auto& state) { state["backoff_factor"] = 2; }, "backoff_factor is 2");
}

}  // namespace
}  // namespace drivetrain
