// SPDX-License-Identifier: Apache-2.0
// Copies, page-locked memory, generators, autocast, saving.
#include <torch/torch.h>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <sstream>

#include "devices.h"
#include "expect_error.h"

namespace drivetrain::sim {
namespace {

class SimCopies : public ::testing::Test {
 protected:
  SimCopies() { accelerator()->set_device(0); }
  ~SimCopies() override {
    for (int index = 0; index < 3; ++index) accelerator()->synchronize(index);
  }
  c10::TensorOptions options = torch::device(at(0));
};

TEST_F(SimCopies, ThereAndBackChangeNothing) {
  for (const auto& host :
       {torch::randn({3, 5}), torch::randn({}), torch::empty({0, 4}), torch::arange(7),
        torch::randn({4, 6}).t(), torch::randn({8, 9}).slice(1, 1, 9, 3),
        torch::randn({2}, torch::kBFloat16), torch::randn({3}, torch::kComplexFloat),
        torch::randn({3}, torch::kComplexFloat).conj(), torch::ones({2}, torch::kBool)}) {
    const auto there = host.to(at(0));
    EXPECT_EQ(there.device(), at(0));
    EXPECT_EQ(there.dtype(), host.dtype());
    EXPECT_TRUE(torch::equal(there.cpu(), host.resolve_conj()));
    EXPECT_TRUE(torch::equal(there.to(at(1)).cpu(), host.resolve_conj()));
  }
}

TEST_F(SimCopies, ConvertAndBroadcast) {
  auto x = torch::zeros({2, 3}, options.dtype(torch::kDouble));
  x.copy_(torch::tensor({1, 2, 3}));
  EXPECT_TRUE(torch::equal(x.cpu()[1], torch::tensor({1.0, 2.0, 3.0}, torch::kDouble)));
  x.copy_(torch::tensor({4.5f, 5.5f, 6.5f}, options));
  EXPECT_EQ(x.sum().item<double>(), 33.0);
  EXPECT_EQ(x.to(torch::kInt).cpu()[0][0].item<int>(), 4);
  EXPECT_ERROR(x.copy_(torch::zeros({4})), c10::Error, "must match");
}

TEST_F(SimCopies, PageLockedMemoryIsKnown) {
  const auto host = torch::arange(10);
  const auto pinned = accelerator()->pin_memory(host);
  EXPECT_FALSE(host.is_pinned());
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_TRUE(pinned.slice(0, 5).is_pinned());
  EXPECT_TRUE(pinned.pin_memory().is_same(pinned));
  EXPECT_TRUE(torch::equal(pinned, host));
  EXPECT_TRUE(torch::empty({3}, torch::TensorOptions().pinned_memory(true)).is_pinned());
}

TEST_F(SimCopies, OfPageLockedMemoryDoNotWait) {
  auto pinned = torch::full({4}, 3.0f).pin_memory(), back = torch::zeros({4}).pin_memory();
  auto x = torch::zeros({4}, options);
  accelerator()->synchronize();
  EXPECT_LT(milliseconds([&] {
              sleep(150);
              x.copy_(pinned, /*non_blocking=*/true);
              back.copy_(x, /*non_blocking=*/true);
            }),
            120);
  EXPECT_EQ(back[0].item<float>(), 0.0f) << "not yet";
  accelerator()->synchronize();
  EXPECT_EQ(back[0].item<float>(), 3.0f);
  EXPECT_GE(milliseconds([&] { sleep(60), x.copy_(pinned); }), 59) << "unless it is asked for";
}

TEST_F(SimCopies, OfOtherHostMemoryWait) {
  auto host = torch::full({4}, 3.0f);
  auto x = torch::zeros({4}, options);
  EXPECT_GE(milliseconds([&] { sleep(60), x.copy_(host, /*non_blocking=*/true); }), 59);
  EXPECT_GE(milliseconds([&] { sleep(60), host.copy_(x, /*non_blocking=*/true); }), 59);
}

TEST_F(SimCopies, HoldPageLockedMemoryThatIsLetGo) {
  auto x = torch::zeros({1000}, options);
  sleep(50);
  x.copy_(torch::full({1000}, 2.0f).pin_memory(), /*non_blocking=*/true);
  for (int i = 0; i < 20; ++i) torch::full({1000}, -1.0f).pin_memory();
  EXPECT_EQ(x.sum().item<float>(), 2000.0f);
}

TEST_F(SimCopies, BetweenDevicesKeepTheOrderOfBoth) {
  auto x = torch::zeros({1}, options), y = torch::zeros({1}, torch::device(at(1)));
  sleep(60);
  x.fill_(5);
  EXPECT_LT(milliseconds([&] { y.copy_(x); }), 50);
  y.add_(1);
  EXPECT_EQ(y.item<float>(), 6.0f);
}

TEST_F(SimCopies, RandomNumbersAreTheDevicesOwnAndRepeat) {
  accelerator()->manual_seed_all(3);
  const auto a = torch::randn({1000}, options), b = torch::rand({1000}, options);
  EXPECT_NEAR(a.mean().item<float>(), 0.0f, 0.15f);
  EXPECT_NEAR(a.std().item<float>(), 1.0f, 0.1f);
  EXPECT_NEAR(b.mean().item<float>(), 0.5f, 0.05f);
  const auto other = torch::randn({1000}, torch::device(at(1)));
  EXPECT_TRUE(torch::equal(other.cpu(), a.cpu())) << "same seed, other device";
  torch::randn({10});  // the CPU's generator has no part in it
  accelerator()->manual_seed_all(3);
  EXPECT_TRUE(torch::equal(torch::randn({1000}, options).cpu(), a.cpu()));
  EXPECT_FALSE(torch::equal(torch::randn({1000}, options).cpu(), a.cpu()));
}

TEST_F(SimCopies, RandomNumbersDoNotDependOnWhenTheyAreDrawn) {
  accelerator()->manual_seed(5);
  const auto state = accelerator()->get_rng_state();
  EXPECT_EQ(state.numel(), 16);
  sleep(30);
  const auto a = torch::rand({3}, options);
  const auto after = accelerator()->get_rng_state();  // without waiting for the numbers
  const auto guard = accelerator()->stream(accelerator()->Stream());
  const auto b = torch::rand({3}, options).cpu();
  accelerator()->synchronize();
  accelerator()->set_rng_state(state);
  EXPECT_TRUE(torch::equal(torch::rand({3}, options).cpu(), a.cpu()));
  EXPECT_TRUE(torch::equal(accelerator()->get_rng_state(), after));
  EXPECT_TRUE(torch::equal(torch::rand({3}, options).cpu(), b));
}

TEST_F(SimCopies, EveryKindOfDrawTakesTheDevicesGenerator) {
  const auto probabilities = torch::full({64}, 0.5f, options);
  const auto draws = std::vector<std::function<at::Tensor()>>{
      [&] { return torch::randint(1000, {64}, options); },
      [&] { return torch::randperm(64, options); },
      [&] { return torch::bernoulli(probabilities); },
      [&] { return torch::multinomial(probabilities, 16); },
      [&] { return torch::dropout(probabilities, 0.5, true); },
      [&] { return torch::empty({64}, options).exponential_(); },
      [&] { return torch::rrelu(probabilities.neg(), 0.1, 0.9, true); },
      [&] { return at::normal(probabilities, probabilities); },
      [&] { return torch::poisson(probabilities.mul(100)); }};
  for (const auto& draw : draws) {
    accelerator()->manual_seed(9);
    torch::manual_seed(1);
    accelerator()->manual_seed(9);
    const auto first = draw().cpu(), second = draw().cpu();
    torch::rand({3});  // moves the CPU's generator
    accelerator()->manual_seed(9);
    EXPECT_TRUE(torch::equal(draw().cpu(), first));
    EXPECT_FALSE(torch::equal(first, second));
  }
  auto own = at::detail::getPrivateUse1Hooks().getNewGenerator(0);
  own.set_current_seed(9);
  accelerator()->manual_seed(9);
  EXPECT_TRUE(torch::equal(torch::empty({5}, options).normal_(0, 1, own).cpu(),
                           torch::randn({5}, options).cpu()));
}

TEST_F(SimCopies, DropoutScalesWhatItKeeps) {
  accelerator()->manual_seed(1);
  auto x = torch::ones({4000}, options).requires_grad_();
  const auto y = torch::dropout(x, 0.25, true);
  const auto kept = y.detach().cpu().ne(0);
  EXPECT_NEAR(kept.to(torch::kFloat).mean().item<float>(), 0.75f, 0.03f);
  EXPECT_TRUE(torch::allclose(y.detach().cpu(), kept / 0.75));
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad().cpu(), y.detach().cpu()));
  EXPECT_TRUE(torch::equal(torch::dropout(x, 0.25, false), x));
  EXPECT_EQ(torch::dropout(x, 1.0, true).sum().item<float>(), 0.0f);
}

TEST_F(SimCopies, AutocastLowersProductsAndKeepsLosses) {
  const auto x = torch::randn({4, 4}, options), w = torch::randn({4, 4}, options);
  {
    const auto scope = accelerator()->autocast(true, torch::kBFloat16);
    EXPECT_EQ(x.matmul(w).dtype(), torch::kBFloat16);
    EXPECT_EQ(torch::linear(x, w).dtype(), torch::kBFloat16);
    EXPECT_EQ(torch::conv1d(x.unsqueeze(0), w.unsqueeze(2)).dtype(), torch::kBFloat16);
    const auto low = x.matmul(w);
    EXPECT_EQ(torch::softmax(low, 1).dtype(), torch::kFloat);
    EXPECT_EQ(torch::mse_loss(low, x).dtype(), torch::kFloat);
    EXPECT_EQ((low + x).dtype(), torch::kFloat);
    EXPECT_EQ(torch::relu(low).dtype(), torch::kBFloat16);
    EXPECT_TRUE(
        torch::equal(low.cpu(), x.cpu().to(torch::kBFloat16).matmul(w.cpu().to(torch::kBFloat16))));
  }
  EXPECT_EQ(x.matmul(w).dtype(), torch::kFloat);
  const auto scope = accelerator()->autocast();
  EXPECT_EQ(x.matmul(w).dtype(), torch::kHalf) << "LibTorch's own choice for the type";
  EXPECT_EQ(x.cpu().matmul(w.cpu()).dtype(), torch::kFloat) << "not the CPU's";
}

TEST_F(SimCopies, TensorsAreSavedAndComeBack) {
  const auto x = torch::randn({3, 4}, options);
  std::stringstream file;
  torch::save(x, file);
  at::Tensor back;
  torch::load(back, file);
  EXPECT_TRUE(torch::equal(back.cpu(), x.cpu()));

  torch::nn::Linear from(3, 2), to(3, 2);
  accelerator()->set_to_device(*from);
  accelerator()->set_to_device(*to);
  std::stringstream archive;
  torch::save(from, archive);
  torch::load(to, archive);
  EXPECT_TRUE(torch::equal(to->weight.cpu(), from->weight.cpu()));
}

}  // namespace
}  // namespace drivetrain::sim
