// SPDX-License-Identifier: Apache-2.0
#include "precision/policy.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "test_device.h"

namespace drivetrain::precision {
namespace {

using torch::Tensor;

const MixedPrecisionPolicy kBf16 = {.param_dtype = torch::kBFloat16};

TEST(Policy, ConvertsInPlaceAndKeepsTheValues) {
  const Tensor weight = here::randn({3, 2}).requires_grad_(true),
               index = here::zeros({2}, torch::kLong);
  const Tensor before = weight.detach().clone();
  const auto masters =
      convert_({{"weight", weight}, {"again", weight}, {"index", index}}, {}, kBf16);
  EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
  EXPECT_EQ(index.scalar_type(), torch::kLong);
  ASSERT_EQ(masters.size(), 1);
  EXPECT_EQ(masters[0].name, "weight");
  EXPECT_TRUE(masters[0].parameter.is_same(weight));
  EXPECT_TRUE(masters[0].value.equal(before));
  EXPECT_TRUE(weight.equal(before.to(torch::kBFloat16)));
}

TEST(Policy, WhatSharesMemoryStillDoes) {
  const Tensor whole = here::randn({4, 2}), part = whole.slice(0, 1, 3);
  const auto masters = convert_({{"whole", whole}, {"part", part}}, {}, kBf16);
  part.fill_(7);
  EXPECT_EQ(whole[1][0].item<float>(), 7);
  masters[1].value.fill_(9);
  EXPECT_EQ(masters[0].value[2][1].item<float>(), 9);
}

TEST(Policy, NormsWithStatisticsStayFloat32) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})));
  NamedTensors parameters, buffers;
  for (const auto& item : net->named_parameters())
    parameters.emplace_back(item.key(), item.value());
  for (const auto& item : net->named_buffers()) buffers.emplace_back(item.key(), item.value());
  buffers.emplace_back("table", torch::zeros({2}));
  MixedPrecisionPolicy policy = kBf16;
  policy.buffer_dtype = torch::kBFloat16;
  EXPECT_EQ(convert_(parameters, buffers, policy).size(), 4);
  for (const auto& [name, tensor] : parameters)
    EXPECT_EQ(tensor.scalar_type(), name.starts_with("1.") ? torch::kFloat : torch::kBFloat16)
        << name;
  for (const auto& [name, tensor] : buffers)
    EXPECT_EQ(tensor.scalar_type() == torch::kBFloat16, name == "table") << name;
}

TEST(Policy, FloatParametersHaveNoMasters) {
  const Tensor weight = torch::zeros({2}, torch::kBFloat16);
  EXPECT_TRUE(convert_({{"weight", weight}}, {}, {.param_dtype = torch::kFloat}).empty());
  EXPECT_EQ(weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(convert_({{"weight", weight}}, {}, {}).empty());
}

TEST(Policy, RefusesMemoryOfTwoTypes) {
  const Tensor weight = torch::zeros({4}), bits = weight.view(torch::kBFloat16);
  EXPECT_ERROR(convert_({{"weight", weight}, {"bits", bits}}, {}, {.param_dtype = torch::kHalf}),
               std::invalid_argument, "parameter bits is BFloat16 and shares its memory");
  EXPECT_EQ(weight.scalar_type(), torch::kFloat);
}

TEST(Policy, RefusesWhatContradicts) {
  const auto refuses = [](const MixedPrecisionPolicy& policy, MixedPrecision autocast,
                          const char* message) {
    EXPECT_ERROR(check(policy, autocast), std::invalid_argument, message);
  };
  refuses({.param_dtype = torch::kDouble}, MixedPrecision::no,
          "param_dtype is Double; allowed: Float, Half, BFloat16");
  refuses({.reduce_dtype = torch::kInt}, MixedPrecision::no, "reduce_dtype is Int");
  refuses({.buffer_dtype = torch::kLong}, MixedPrecision::no, "buffer_dtype is Long");
  refuses({.output_dtype = torch::kBool}, MixedPrecision::no, "output_dtype is Bool");
  refuses(kBf16, MixedPrecision::bf16, "asks for autocast, which computes in another way");
  refuses({.master_weights = false}, MixedPrecision::no, "no param_dtype of 16 bits");
  refuses({.param_dtype = torch::kFloat, .master_weights = false}, MixedPrecision::no,
          "no param_dtype of 16 bits");
  refuses({.stochastic_rounding = true}, MixedPrecision::no,
          "stochastic_rounding and no param_dtype; allowed: with BFloat16");
  refuses({.param_dtype = torch::kHalf, .stochastic_rounding = true}, MixedPrecision::no,
          "stochastic_rounding and param_dtype Half");
  check({.reduce_dtype = torch::kBFloat16, .output_dtype = torch::kFloat}, MixedPrecision::fp16);
}

}  // namespace
}  // namespace drivetrain::precision
