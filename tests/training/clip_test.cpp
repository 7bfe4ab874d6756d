// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <limits>

#include "expect_error.h"

namespace drivetrain {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Parameters with gradients, one without, one empty, one in another type.
Tensors with_gradients() {
  torch::manual_seed(2);
  Tensors parameters = {torch::zeros({3, 5}), torch::zeros({2}), torch::zeros({0}),
                        torch::zeros({7}).to(torch::kDouble)};
  for (auto& parameter : parameters) {
    parameter.requires_grad_(true);
    parameter.mutable_grad() = torch::randn_like(parameter) * 3;
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

TEST(ClipGradNorm, OfNothingIsZero) {
  const Accelerator accelerator;
  EXPECT_EQ(accelerator.clip_grad_norm_({}, 1).item<double>(), 0);
  EXPECT_EQ(accelerator.clip_grad_norm_({torch::ones({2})}, 1).item<double>(), 0);
}

TEST(ClipGradNorm, CountsATiedParameterOnce) {
  const auto x = torch::zeros({4}, torch::requires_grad());
  x.mutable_grad() = torch::ones({4});
  EXPECT_FLOAT_EQ(Accelerator().clip_grad_norm_({x, x}, 1).item<float>(), 2);
  EXPECT_TRUE(torch::allclose(x.grad(), torch::full({4}, 0.5)));
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

}  // namespace
}  // namespace drivetrain
