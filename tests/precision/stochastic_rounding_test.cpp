// SPDX-License-Identifier: Apache-2.0
#include "precision/stochastic_rounding.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "test_device.h"

namespace drivetrain::precision {
namespace {

using torch::Tensor;

std::vector<Tensor> rounded(const std::vector<Tensor>& from, uint64_t seed) {
  std::vector<Tensor> to;
  for (const Tensor& tensor : from)
    to.push_back(torch::empty_like(tensor, tensor.options().dtype(torch::kBFloat16)));
  round_stochastically(to, from, seed);
  return to;
}

Tensor rounded(const Tensor& from, uint64_t seed = 0) {
  return rounded(std::vector{from}, seed)[0];
}

// A value that is p of the way from one neighbour to the next becomes the next with probability p.
TEST(StochasticRounding, IsRightInTheMean) {
  constexpr int64_t kSize = 1 << 20;
  for (const double p : {0.0, 1 / 65536.0, 0.1, 0.25, 0.5, 0.9, 65535 / 65536.0})
    for (const double sign : {1.0, -1.0}) {
      const Tensor to = rounded(here::full({kSize}, sign * (1 + p / 128))).to(torch::kDouble).cpu();
      const Tensor ups = (to.abs() - 1) * 128;
      EXPECT_TRUE(ups.eq(0).logical_or(ups.eq(1)).all().item<bool>()) << p;
      const double deviation = std::sqrt(p * (1 - p) / kSize);
      // The value itself is rounded to 16 bits below those that are kept.
      EXPECT_NEAR(ups.mean().item<double>(), p, 5 * deviation + 1.0 / 65536) << p << " " << sign;
    }
}

TEST(StochasticRounding, KeepsWhatBfloat16Holds) {
  const Tensor exact =
      here::tensor({0.0, -0.0, 1.0, -3.5, 1e-39, 3.3895e38}).to(torch::kBFloat16).to(torch::kFloat);
  EXPECT_TRUE(rounded(exact).to(torch::kFloat).equal(exact));
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor odd = rounded(here::tensor({inf, -inf, std::nanf("1")})).to(torch::kFloat).cpu();
  EXPECT_EQ(odd[0].item<float>(), inf);
  EXPECT_EQ(odd[1].item<float>(), -inf);
  EXPECT_TRUE(std::isnan(odd[2].item<float>()));
}

// NaNs whose bits that say so are all cut off.
TEST(StochasticRounding, DoesNotTurnNanIntoInfinity) {
  const Tensor bits = here::moved(torch::tensor({0x7f800001, 0x7f80ffff}, torch::kInt));
  EXPECT_TRUE(rounded(bits.view(torch::kFloat)).isnan().all().item<bool>());
}

TEST(StochasticRounding, DependsOnSeedTensorAndPlaceAlone) {
  const Tensor values = here::full({3, 50'000}, 1.003);
  EXPECT_TRUE(rounded(values, 7).equal(rounded(values, 7)));
  EXPECT_FALSE(rounded(values, 7).equal(rounded(values, 8)));
  const auto several = rounded({values, values, values.slice(1, 0, 10)}, 7);
  EXPECT_TRUE(several[0].equal(rounded(values, 7)));
  EXPECT_FALSE(several[0].equal(several[1]));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(rounded(values, 7).equal(several[0]));
  at::set_num_threads(threads);
}

// The numbers are those of the CPU on every device, whose operations make them in another way.
TEST(StochasticRounding, IsTheSameOnEveryDevice) {
  torch::Generator generator = at::detail::createCPUGenerator(5);
  const Tensor values = torch::randn({(1 << 22) + 3}, generator);
  EXPECT_TRUE(rounded(here::moved(values), 9).cpu().equal(rounded(values, 9)));
}

TEST(StochasticRounding, TakesAnyLayout) {
  const Tensor values = here::randn({5, 7});
  const Tensor expected = rounded(values, 1);
  const Tensor to = here::zeros({7, 5}, torch::kBFloat16).t();
  round_stochastically({to}, {values.t().contiguous().t()}, 1);
  EXPECT_TRUE(to.equal(expected));
  EXPECT_EQ(rounded(here::zeros({0})).numel(), 0);
  EXPECT_EQ(rounded(here::full({}, 2.0)).item<float>(), 2);
  round_stochastically({}, {}, 0);
}

}  // namespace
}  // namespace drivetrain::precision
