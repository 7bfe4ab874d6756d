// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "expect_error.h"
#include "test_device.h"

namespace drivetrain {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Parameters with gradients, one without, one empty, one in another type.
Tensors with_gradients() {
  torch::manual_seed(2);
  Tensors parameters = {here::zeros({3, 5}), here::zeros({2}), here::zeros({0}),
                        here::zeros({7}).to(torch::kDouble)};
  for (auto& parameter : parameters) {
    parameter.requires_grad_(true);
    parameter.mutable_grad() = here::randn(parameter.sizes(), parameter.scalar_type()) * 3;
  }
  parameters[1].mutable_grad().reset();
  return parameters;
}

TEST(ClipGradNorm, EqualsLibTorchs) {
  for (const double norm_type : {1.0, 2.0, 3.5, kInfinity})
    for (const double max_norm : {0.0, 0.5, 1e6}) {
      const Tensors ours = with_gradients(), theirs = with_gradients();
      // LibTorch's own fails on an empty gradient when the norm is the maximum.
      const double norm = torch::nn::utils::clip_grad_norm_(
          Tensors{theirs[0], theirs[1], theirs[3]}, max_norm, norm_type);
      const Accelerator accelerator;
      EXPECT_NEAR(accelerator.clip_grad_norm_(ours, max_norm, norm_type).item<double>(), norm,
                  1e-5 * norm);
      for (const size_t i : {0, 3})
        EXPECT_TRUE(torch::allclose(ours[i].grad(), theirs[i].grad(), 1e-5, 1e-7));
      EXPECT_FALSE(ours[1].grad().defined());
    }
}

// Types that the hardware room's kernel serves: LibTorch's own norms of them are in their own type,
// so the reference is float.
Tensors with_reduced_gradients() {
  torch::manual_seed(4);
  Tensors parameters;
  for (const auto type : {torch::kFloat, torch::kHalf, torch::kBFloat16})
    for (const int64_t size : {0, 1, 33, 40001}) {
      parameters.push_back(here::zeros({size}).to(type).requires_grad_(true));
      parameters.back().mutable_grad() = here::randn({size}).to(type);
    }
  return parameters;
}

TEST(ClipGradNorm, ServesReducedTypesAsFloat) {
  for (const double max_norm : {0.0, 0.5, 1e6}) {
    const Tensors ours = with_reduced_gradients();
    Tensors expected;
    for (const auto& parameter : ours)
      expected.push_back(parameter.grad().clone().to(torch::kFloat));
    double sum = 0;
    for (const auto& grad : expected) sum += grad.to(torch::kDouble).square().sum().item<double>();
    const double norm = Accelerator().clip_grad_norm_(ours, max_norm).item<double>();
    EXPECT_NEAR(norm / std::sqrt(sum), 1, 1e-6);
    for (size_t i = 0; i < ours.size(); ++i) {
      const auto scaled = expected[i] * std::min(1.0, max_norm / (norm + 1e-6));
      const auto& grad = ours[i].grad();
      const double digit = grad.scalar_type() == torch::kBFloat16 ? 4e-3 : 1e-3;
      EXPECT_TRUE(torch::allclose(grad.to(torch::kFloat), scaled, digit, 1e-7)) << i;
    }
  }
}

TEST(ClipGradNorm, OfFloat16MayBeMoreThanFloat16Holds) {
  for (const double norm_type : {1.0, 2.0}) {
    const auto x = here::zeros({100}, torch::dtype(torch::kHalf).requires_grad(true));
    x.mutable_grad() = here::full({100}, 30000.0, torch::kHalf);
    EXPECT_NEAR(Accelerator().clip_grad_norm_({x}, 3e4, norm_type).item<double>(),
                norm_type == 1 ? 3e6 : 3e5, 10);
    EXPECT_TRUE(torch::allclose(x.grad().to(torch::kFloat),
                                here::full({100}, norm_type == 1 ? 300.0 : 3000.0), 1e-3));
  }
}

TEST(ClipGradNorm, LeavesGradientsWithinTheBoundUntouched) {
  const auto x = here::zeros({3}, torch::requires_grad());
  x.mutable_grad() = here::tensor({3.0F, 4.0F, 0.0F});
  const auto version = x.grad()._version();
  EXPECT_FLOAT_EQ(Accelerator().clip_grad_norm_({x}, 6).item<float>(), 5);
  // A device multiplies by 1 rather than have the host wait for the norm.
  if (here::is_cpu()) {
    EXPECT_EQ(x.grad()._version(), version);
  }
  EXPECT_TRUE(torch::equal(x.grad(), here::tensor({3.0F, 4.0F, 0.0F})));
  EXPECT_FLOAT_EQ(Accelerator().clip_grad_norm_({x}, 1).item<float>(), 5);
  EXPECT_GT(x.grad()._version(), version);
  EXPECT_TRUE(torch::allclose(x.grad(), here::tensor({0.6F, 0.8F, 0.0F})));
}

// As upstream: without error_if_nonfinite, what is not finite spreads.
TEST(ClipGradNorm, NormsThatAreNotFiniteActAsLibTorchs) {
  for (const double value : {kInfinity, std::nan("")}) {
    Tensors both;
    for (int i = 0; i < 2; ++i) {
      both.push_back(here::zeros({3}, torch::requires_grad()));
      both.back().mutable_grad() = here::tensor({1.0F, static_cast<float>(value), 2.0F});
    }
    Accelerator().clip_grad_norm_({both[0]}, 1);
    torch::nn::utils::clip_grad_norm_(both[1], 1);
    EXPECT_TRUE(torch::allclose(both[0].grad(), both[1].grad(), 0, 0, /*equal_nan=*/true));
    EXPECT_ERROR(Accelerator().clip_grad_norm_({both[0]}, 1, 2, /*error_if_nonfinite=*/true),
                 std::runtime_error, "the gradient of parameter 0 of shape [3] is not finite");
  }
}

TEST(ClipGradNorm, OfNothingIsZero) {
  const Accelerator accelerator;
  EXPECT_EQ(accelerator.clip_grad_norm_({}, 1).item<double>(), 0);
  EXPECT_EQ(accelerator.clip_grad_norm_({here::ones({2})}, 1).item<double>(), 0);
}

TEST(ClipGradNorm, CountsATiedParameterOnce) {
  const auto x = here::zeros({4}, torch::requires_grad());
  x.mutable_grad() = here::ones({4});
  EXPECT_FLOAT_EQ(Accelerator().clip_grad_norm_({x, x}, 1).item<float>(), 2);
  EXPECT_TRUE(torch::allclose(x.grad(), here::full({4}, 0.5)));
}

TEST(ClipGradNorm, NamesWhatIsNotFinite) {
  const Tensors parameters = with_gradients();
  parameters[3].mutable_grad()[2] = kInfinity;
  const Tensor before = parameters[0].grad().clone();
  EXPECT_ERROR(Accelerator().clip_grad_norm_(parameters, 1, 2, /*error_if_nonfinite=*/true),
               std::runtime_error, "the gradient of parameter 3 of shape [7] is not finite");
  EXPECT_TRUE(torch::equal(parameters[0].grad(), before));
}

TEST(ClipGradNorm, RefusesWhatIsOutOfRange) {
  const Accelerator accelerator;
  EXPECT_ERROR(accelerator.clip_grad_norm_({}, -1), std::invalid_argument,
               "max_norm is -1; allowed: 0 or more");
  EXPECT_ERROR(accelerator.clip_grad_norm_({}, 1, 0), std::invalid_argument,
               "norm_type is 0; allowed: above 0");
}

TEST(ClipGradValue, ClampsEveryElement) {
  const Tensors ours = with_gradients(), theirs = with_gradients();
  Accelerator().clip_grad_value_(ours, 0.7);
  torch::nn::utils::clip_grad_value_(theirs, 0.7);
  for (const size_t i : {0, 2, 3}) EXPECT_TRUE(torch::equal(ours[i].grad(), theirs[i].grad()));
  EXPECT_ERROR(Accelerator().clip_grad_value_({}, -1), std::invalid_argument,
               "clip_value is -1; allowed: 0 or more");
}

// A kernel of the user's serves its accelerator: asked for the norm, then to scale.
TEST(ClipGradNorm, GoesThroughTheBestRegisteredKernel) {
  std::vector<std::optional<double>> factors;
  const kernels::GradNormKernel count = [&](const std::vector<at::Tensor>& tensors,
                                            std::optional<double> factor) {
    EXPECT_EQ(tensors.size(), 1);
    factors.push_back(factor);
    return kernels::GradNorm{.sum_of_squares = 25};
  };
  const std::string backend = c10::DeviceTypeName(here::device().type(), /*lower_case=*/true);
  kernels::kernel_registry().add({.operation = "grad_norm",
                                  .name = "counting",
                                  .backend = backend,
                                  .priority = 99,
                                  .run = count});
  auto x = here::zeros({2}).requires_grad_();
  x.mutable_grad() = here::ones({2});
  EXPECT_FLOAT_EQ(Accelerator().clip_grad_norm_({x}, 10).item<float>(), 5);
  EXPECT_FLOAT_EQ(Accelerator().clip_grad_norm_({x}, 1).item<float>(), 5);
  kernels::kernel_registry().remove("grad_norm", backend, "counting");
  ASSERT_EQ(factors.size(), 3);
  EXPECT_EQ(factors[0], std::nullopt);
  EXPECT_EQ(factors[1], std::nullopt);
  EXPECT_NEAR(factors[2].value_or(0), 0.2, 1e-6);
}

}  // namespace
}  // namespace drivetrain
