// SPDX-License-Identifier: Apache-2.0
#include "parallel/power_sgd.h"

#include <torch/torch.h>

#include <span>

#include "models.h"
#include "power_sgd_golden.h"

namespace drivetrain::parallel {
namespace {

TEST(Orthogonalize, GivesAnOrthonormalBasisOfTheSameSpace) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-12;
    const at::Tensor matrix = seeded(1, [&] { return here::randn({20, 4}, dtype); });
    // Nearly dependent columns are what one pass of Gram-Schmidt fails on.
    matrix.select(1, 3).copy_(matrix.select(1, 0) + 1e-3 * matrix.select(1, 3));
    const at::Tensor q = matrix.clone();
    orthogonalize_(q, 0);
    EXPECT_TRUE(at::allclose(q.t().matmul(q), here::eye(4, dtype), 0, tolerance));
    EXPECT_TRUE(at::allclose(q.matmul(q.t().matmul(matrix)), matrix, 0, 10 * tolerance));
  }
}

TEST(Orthogonalize, CopesWithDependentAndZeroColumns) {
  const at::Tensor first = here::tensor({3.0F, 0.0F, 4.0F, 1.0F});
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor matrix =
        torch::stack({here::zeros({4}), first, here::ones({4}), here::zeros({4})}, 1).to(dtype);
    orthogonalize_(matrix, 0);
    const at::Tensor wide = matrix.to(at::kFloat);
    EXPECT_TRUE(at::allclose(wide.t().matmul(wide),
                             torch::diag(here::tensor({0.0F, 1.0F, 1.0F, 0.0F})), 0, 0.02));
  }
  // A third of 1 rounds, so something is left of the second column: any direction will do.
  const at::Tensor matrix = torch::stack({first / 3, first * 0.7, first * -1.1}, 1);
  orthogonalize_(matrix, 0);
  const at::Tensor products = matrix.t().matmul(matrix);
  EXPECT_TRUE(
      at::allclose(products - torch::diag(torch::diag(products)), here::zeros({3, 3}), 0, 1e-5));
  EXPECT_NEAR(products[0][0].item<double>(), 1, 1e-6);
}

TEST(Orthogonalize, AddsEpsilonToNorms) {
  const at::Tensor matrix = here::tensor({{3.0, 1.0}, {0.0, 1.0}}, at::kDouble);
  orthogonalize_(matrix, 1.0);
  EXPECT_NEAR(matrix[0][0].item<double>(), 0.75, 1e-12);
}

TEST(SeedSequence, IsNumpys) {
  // numpy.random.RandomState(s).randint(1000000000), three times, for s = 0 and 42.
  SeedSequence zero(0);
  EXPECT_EQ(zero.next(), 209652396U);
  EXPECT_EQ(zero.next(), 398764591U);
  EXPECT_EQ(zero.next(), 924231285U);
  SeedSequence other(42);
  EXPECT_EQ(other.next(), 534895718U);
}

DistributedDataParallelOptions with(PowerSgdOptions power_sgd,
                                    CommHookKind kind = CommHookKind::power_sgd) {
  DistributedDataParallelOptions options;
  options.comm_hook = kind;
  options.power_sgd = power_sgd;
  return options;
}

// The gradients of power_sgd.py.
at::Tensor matrix_gradient(int rank, int step) {
  const at::Tensor i = here::arange(8, at::kDouble).unsqueeze(1);
  const at::Tensor j = here::arange(6, at::kDouble);
  return torch::sin(1 + i + 7 * j + 3 * rank + 5 * step).to(at::kFloat);
}

at::Tensor vector_gradient(int rank, int step) {
  return torch::cos(here::arange(6, at::kDouble) + rank + 2 * step).to(at::kFloat);
}

std::vector<double> values_under(const DistributedDataParallelOptions& options) {
  return on_ranks(2, [&](World world) {
    const at::Tensor w = here::zeros({8, 6}).requires_grad_();
    const at::Tensor b = here::zeros({6}).requires_grad_();
    const NamedTensors parameters = {{"w", w}, {"b", b}};
    GradientSync sync(world, parameters, {}, options);
    std::vector<double> values;
    for (int step = 0; step < 5; ++step) {
      w.mutable_grad().reset();
      b.mutable_grad().reset();
      const auto loss = (w * matrix_gradient(world.rank(), step)).sum() +
                        (b * vector_gradient(world.rank(), step)).sum();
      loss.backward();
      if (step < 2) continue;
      for (const at::Tensor& gradient : {w.grad().reshape({-1}), b.grad()})
        for (int64_t k = 0; k < gradient.numel(); ++k) values.push_back(gradient[k].item<double>());
    }
    return values;
  })[0];
}

void expect_golden(std::span<const double> golden, const DistributedDataParallelOptions& options) {
  const std::vector<double> values = values_under(options);
  ASSERT_EQ(values.size(), golden.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], golden[i], 3e-6) << i;
}

PowerSgdOptions recorded() { return {.start_iter = 2, .min_compression_rate = 1}; }

TEST(PowerSgd, GivesPyTorchsNumbers) {
  PowerSgdOptions options = recorded();
  expect_golden(golden::kRankOne, with(options));
  options.matrix_approximation_rank = 3;
  expect_golden(golden::kRankThree, with(options));
  options.matrix_approximation_rank = 2;
  options.seed = 42;
  expect_golden(golden::kRankTwo, with(options));
}

TEST(PowerSgd, GivesPyTorchsNumbersWithoutItsRefinements) {
  PowerSgdOptions options = recorded();
  options.use_error_feedback = false;
  expect_golden(golden::kNoErrorFeedback, with(options));
  options = recorded();
  options.warm_start = false;
  options.seed = 7;
  expect_golden(golden::kNoWarmStart, with(options));
}

TEST(BatchedPowerSgd, GivesPyTorchsNumbers) {
  expect_golden(golden::kBatched, with(recorded(), CommHookKind::batched_power_sgd));
}

// u v^T on every rank, with the same u: their mean is of rank one.
TEST(PowerSgd, IsExactOnMatricesOfLowRank) {
  for (const int n : {2, 3, 4}) {
    for (const int64_t rank : {1, 2, 4}) {
      PowerSgdOptions power_sgd = {.matrix_approximation_rank = rank, .start_iter = 0};
      const auto all = on_ranks(n, [&](World world) {
        // All that is drawn is drawn under the lock: the threads share one generator.
        auto model = here::moved(seeded(9, [] { return torch::nn::Linear(48, 32); }));
        model->to(at::kDouble);
        const auto options = with(power_sgd);
        GradientSync sync(world, named_parameters(*model), {}, options);
        std::vector<at::Tensor> all;
        for (int step = 0; step < 4; ++step) {
          model->zero_grad();
          const auto x =
              seeded(step * 10 + world.rank(), [] { return here::randn({1, 48}, at::kDouble); });
          const auto u = seeded(step, [] { return here::randn({32}, at::kDouble); });
          (model->forward(x) * u).sum().backward();
          const auto expected = all_reduce(world, torch::outer(u, x[0]), ReduceOp::mean);
          expect_close(gradients(*model), {expected, u}, 1e-9, 1e-9);
          for (const auto& gradient : gradients(*model)) all.push_back(gradient);
        }
        return all;
      });
      for (const auto& one : all) expect_equal(one, all[0]);
    }
  }
}

// Factors of zeros are not kept: PyTorch's hook gives NaN from here on.
TEST(PowerSgd, RecoversFromGradientsOfZeros) {
  for (const auto kind : {CommHookKind::power_sgd, CommHookKind::batched_power_sgd}) {
    run_ranks(2, [kind](World world) {
      const at::Tensor w = here::zeros({16, 16}).requires_grad_();
      const NamedTensors parameters = {{"w", w}};
      GradientSync sync(world, parameters, {},
                        with({.matrix_approximation_rank = 2, .start_iter = 0}, kind));
      for (const double scale : {0.0, 1.0, 0.0, 0.0, 2.0}) {
        w.mutable_grad().reset();
        (w * (scale * (world.rank() + 1))).sum().backward();
        expect_close({w.grad()}, {here::full({16, 16}, 1.5 * scale)}, 1e-4, 1e-4);
      }
    });
  }
}

// With error feedback what is sent adds up to the sum of the gradients, though each step is lossy.
TEST(PowerSgd, LosesNothingInTheLongRun) {
  const auto deviation = [](bool feedback) {
    return on_ranks(2, [&](World world) {
      const at::Tensor w = here::zeros({16, 16}).requires_grad_();
      const NamedTensors parameters = {{"w", w}};
      GradientSync sync(world, parameters, {},
                        with({.start_iter = 0, .use_error_feedback = feedback}));
      const at::Tensor mine = seeded(world.rank(), [] { return here::randn({16, 16}); });
      const at::Tensor mean = all_reduce(world, mine, ReduceOp::mean);
      at::Tensor sent = here::zeros({16, 16});
      for (int step = 0; step < 200; ++step) {
        w.mutable_grad().reset();
        (w * mine).sum().backward();
        sent = sent + w.grad();
      }
      return ((sent / 200 - mean).norm() / mean.norm()).item<double>();
    })[0];
  };
  EXPECT_LT(deviation(true), 0.15);
  EXPECT_GT(deviation(false), 0.5);
}

// A few numbers travel in the place of 32 * 48 of them.
TEST(PowerSgd, LeavesWhatWouldNotShrinkEnough) {
  run_ranks(2, [](World world) {
    const at::Tensor wide = here::zeros({40, 40}).requires_grad_();
    const at::Tensor small = here::zeros({3, 3}).requires_grad_();
    const NamedTensors parameters = {{"wide", wide}, {"small", small}};
    GradientSync sync(world, parameters, {}, with({.start_iter = 0}));
    const auto draw = [&](int64_t n) {
      return seeded(world.rank() + 1, [n] { return here::randn({n, n}); });
    };
    ((wide * draw(40)).sum() + (small * draw(3)).sum()).backward();
    expect_close({small.grad()}, {all_reduce(world, draw(3), ReduceOp::mean)});
    EXPECT_FALSE(at::allclose(wide.grad(), all_reduce(world, draw(40), ReduceOp::mean), 0.1, 0.1));
    const at::Tensor singular = at::linalg_svdvals(wide.grad());
    EXPECT_LT(singular[1].item<double>(), 1e-4 * singular[0].item<double>());
  });
}

}  // namespace
}  // namespace drivetrain::parallel
