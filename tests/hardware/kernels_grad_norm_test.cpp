// SPDX-License-Identifier: Apache-2.0
// Norm, check and scaling in one pass, on every instruction set of this machine.
#include <torch/torch.h>

#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "expect_error.h"
#include "hardware/kernels/blocks.h"
#include "hardware/kernels/grad_norm.h"
#include "kernels_levels.h"

namespace drivetrain::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Sizes around the widths of vectors and blocks; the 3 starts off every boundary.
Tensors gradients(at::ScalarType type) {
  torch::manual_seed(3);
  Tensors all;
  for (const int64_t size : {0, 1, 7, 31, 32, 33, 1000, 16384, 100003})
    all.push_back(torch::randn({size}).to(type));
  all.push_back(torch::randn({50}).to(type).slice(0, 3));
  all.push_back(torch::randn({6, 5}).to(type).t());
  return all;
}

Tensors copies(const Tensors& from) {
  Tensors all;
  for (const auto& tensor : from) all.push_back(tensor.clone(at::MemoryFormat::Preserve));
  return all;
}

double sum_in_double(const Tensors& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) sum += tensor.to(at::kDouble).square().sum().item<double>();
  return sum;
}

class GradNormKernels : public testing::TestWithParam<CpuLevel> {
 protected:
  GradNormKernel kernel_ = cpu_grad_norm(loops_of(GetParam()));
  GradNormKernel scalar_ = cpu_grad_norm(kScalarLoops);
};

INSTANTIATE_TEST_SUITE_P(Levels, GradNormKernels, testing::ValuesIn(levels_here()), name_of_level);

TEST_P(GradNormKernels, IsTheSumOfSquares) {
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const Tensors tensors = gradients(type), before = copies(tensors);
    const GradNorm found = kernel_(tensors, std::nullopt);
    EXPECT_NEAR(found.sum_of_squares / sum_in_double(tensors), 1, 1e-13) << type;
    EXPECT_DOUBLE_EQ(found.norm(), std::sqrt(found.sum_of_squares));
    EXPECT_FALSE(found.found_inf);
    EXPECT_EQ(found.first_nonfinite, -1);
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(same_bits(tensors[i], before[i]));
  }
}

TEST_P(GradNormKernels, OfNothingIsZero) {
  for (const Tensors& tensors : {Tensors{}, Tensors{torch::zeros({0})}}) {
    EXPECT_EQ(kernel_(tensors, std::nullopt).sum_of_squares, 0);
    EXPECT_FALSE(kernel_(tensors, 2.0).found_inf);
  }
}

// The largest floats have squares beyond a float, the smallest ones squares below it.
TEST_P(GradNormKernels, NeitherOverflowsNorUnderflows) {
  const Tensors large = {torch::full({100}, 3e38F)}, small = {torch::full({100}, 1e-44F)};
  EXPECT_NEAR(kernel_(large, std::nullopt).norm() / 3e39, 1, 1e-6);
  EXPECT_FALSE(kernel_(large, std::nullopt).found_inf);
  EXPECT_NEAR(kernel_(small, std::nullopt).sum_of_squares / sum_in_double(small), 1, 1e-12);
}

TEST_P(GradNormKernels, TheBitsDependNeitherOnTheLevelNorOnTheThreads) {
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const std::optional<double> factor : {std::optional<double>(), std::optional(0.37)}) {
      Tensors expected = gradients(type);
      const GradNorm scalar = scalar_(expected, factor);
      for (const int threads : {1, 2, 3, 4, 7}) {
        const ScopedThreads scope(threads);
        const Tensors tensors = gradients(type);
        const GradNorm found = kernel_(tensors, factor);
        EXPECT_EQ(found.sum_of_squares, scalar.sum_of_squares) << type << ", " << threads;
        for (size_t i = 0; i < tensors.size(); ++i)
          EXPECT_TRUE(same_bits(tensors[i], expected[i])) << type << ", tensor " << i;
      }
    }
}

TEST_P(GradNormKernels, ScalesAndMeasuresTheNewValues) {
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const Tensors tensors = gradients(type), expected = copies(tensors);
    at::_foreach_mul_(expected, at::scalar_tensor(0.37F));
    const GradNorm found = kernel_(tensors, 0.37);
    for (size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(same_bits(tensors[i], expected[i])) << type << ", tensor " << i;
    EXPECT_NEAR(found.sum_of_squares / sum_in_double(expected), 1, 1e-13);
  }
}

TEST_P(GradNormKernels, FindsAnElementThatIsNotFiniteAnywhere) {
  for (const float value : {kInfinity, -kInfinity, kNan})
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16})
      for (const size_t tensor : {1, 5, 8})
        for (const bool at_the_end : {false, true}) {
          const Tensors tensors = gradients(type);
          tensors[tensor][at_the_end ? -1 : 0] = value;
          tensors[9][4] = kNan;
          for (const std::optional<double> factor : {std::optional<double>(), std::optional(0.5)}) {
            const GradNorm found = kernel_(tensors, factor);
            EXPECT_TRUE(found.found_inf);
            EXPECT_EQ(found.first_nonfinite, tensor) << type << ", " << value;
            EXPECT_FALSE(std::isfinite(found.sum_of_squares));
          }
        }
}

TEST_P(GradNormKernels, AnElementThatOverflowsWhenScaledIsNotFinite) {
  const Tensors half = {torch::ones({40}).to(at::kHalf), torch::full({40}, 60000.0).to(at::kHalf)};
  EXPECT_FALSE(kernel_(half, std::nullopt).found_inf);
  const GradNorm found = kernel_(half, 2.0);
  EXPECT_TRUE(found.found_inf);
  EXPECT_EQ(found.first_nonfinite, 1);
}

TEST_P(GradNormKernels, BackwardNoticesThatASavedTensorWasScaled) {
  const auto x = torch::ones({4}, torch::requires_grad());
  const auto y = x.exp();
  kernel_({y.detach()}, std::nullopt);
  y.sum().backward({}, /*retain_graph=*/true);
  kernel_({y.detach()}, 0.5);
  EXPECT_ERROR(y.sum().backward(), c10::Error, "modified by an inplace operation");
}

TEST(GradNormKernel, RefusesWhatItDoesNotServe) {
  const auto kernel = cpu_grad_norm(kScalarLoops);
  const auto ones = torch::ones({2});
  EXPECT_ERROR(
      kernel({ones, ones.to(at::kDouble)}, 0.5), HardwareError,
      "grad_norm: tensor 1 is Double of shape [2] on cpu; allowed: Float, Half or BFloat16 "
      "in host memory");
  EXPECT_ERROR(kernel({ones, torch::ones({4}).slice(0, 0, 4, 2)}, 0.5), HardwareError,
               "tensor 1 is Float of shape [2] on cpu; allowed");
  EXPECT_ERROR(kernel({ones, torch::ones({1}).expand({3})}, 0.5), HardwareError, "tensor 1 is");
  EXPECT_ERROR(kernel({ones, torch::ones({2}, at::kMeta)}, 0.5), HardwareError,
               "tensor 1 is Float of shape [2] on meta, not host memory");
  EXPECT_ERROR(kernel({ones, at::Tensor()}, 0.5), HardwareError, "tensor 1 is undefined");
  EXPECT_TRUE(torch::equal(ones, torch::ones({2})));
}

TEST(Blocks, CoverEveryElementOnce) {
  const std::vector<int64_t> sizes = {0, 1, 63, 64, 65, 16384, 0, 40000, 5};
  const Blocks blocks(sizes);
  std::vector<int64_t> seen(sizes.size());
  for (int64_t block = 0; block < blocks.count(); ++block) {
    int64_t elements = 0;
    blocks.for_pieces(block, [&](size_t tensor, int64_t begin, int64_t count) {
      EXPECT_EQ(begin, seen[tensor]);
      EXPECT_EQ(begin % Blocks::kAlignment, 0);
      EXPECT_GT(count, 0);
      seen[tensor] += count;
      elements += count;
    });
    EXPECT_LE(elements, Blocks::kBlock);
  }
  EXPECT_EQ(seen, sizes);
  EXPECT_EQ(Blocks({}).count(), 0);
}

TEST(Blocks, RunEachTaskOnceWhateverTheThreads) {
  for (const int threads : {1, 2, 3, 7})
    for (const int64_t count : {0, 1, 2, 100}) {
      const ScopedThreads scope(threads);
      std::vector<int> runs(count);
      run_blocks(count, [&](int64_t block) { ++runs[block]; });
      EXPECT_EQ(runs, std::vector<int>(count, 1));
    }
}

TEST(Blocks, RunOnSeveralThreadsAtOnce) {
  const ScopedThreads scope(2);
  std::atomic<int> waiting{0};
  // Each of the first two tasks waits for the other: one thread alone would never get past.
  run_blocks(4, [&](int64_t) {
    ++waiting;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (waiting < 2 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    EXPECT_GE(waiting, 2);
  });
}

}  // namespace
}  // namespace drivetrain::kernels
