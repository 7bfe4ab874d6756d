// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing against the same forward without it: gradients to the bit, less memory.
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "expect_error.h"
#include "ranks.h"
#include "small_net.h"

namespace drivetrain {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

nn::Sequential layers(int64_t width, int count, double dropout = 0) {
  torch::manual_seed(3);
  nn::Sequential all;
  for (int i = 0; i < count; ++i) {
    all->push_back(nn::Linear(width, width));
    all->push_back(nn::Tanh());
    if (dropout > 0) all->push_back(nn::Dropout(dropout));
  }
  return here::moved(all);
}

using Forward = std::function<Tensor(nn::Sequential&, const Tensor&)>;

// The gradients of the input and of all parameters.
std::vector<Tensor> gradients_of(const Forward& forward, double dropout = 0) {
  auto net = layers(6, 4, dropout);
  const auto x = here::randn({5, 6}).requires_grad_();
  torch::manual_seed(9);
  forward(net, x).pow(2).sum().backward();
  std::vector<Tensor> gradients = {x.grad()};
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

Tensor plain(nn::Sequential& net, const Tensor& x) { return net->forward(x); }
Tensor checkpointed(nn::Sequential& net, const Tensor& x) {
  return activation_checkpoint([net](const Tensor& y) mutable { return net->forward(y); }, x);
}

void expect_equal(const std::vector<Tensor>& ours, const std::vector<Tensor>& wanted) {
  ASSERT_EQ(ours.size(), wanted.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(wanted[i])) << i;
}

TEST(ActivationCheckpoint, GivesTheSameGradients) {
  expect_equal(gradients_of(checkpointed), gradients_of(plain));
}

TEST(ActivationCheckpoint, DrawsTheSameRandomNumbersTwice) {
  expect_equal(gradients_of(checkpointed, 0.5), gradients_of(plain, 0.5));
  // The generator goes on as if the second run had not been.
  const auto after = [](const Forward& forward) {
    gradients_of(forward, 0.5);
    return here::moved(torch::rand({4}));
  };
  EXPECT_TRUE(after(checkpointed).equal(after(plain)));
}

TEST(ActivationCheckpoint, WithoutRandomStatesDropoutDiffers) {
  const Forward careless = [](nn::Sequential& net, const Tensor& x) {
    return activation_checkpoint(
        ActivationCheckpointOptions{.preserve_rng_state = false},
        [net](const Tensor& y) mutable { return net->forward(y); }, x);
  };
  expect_equal(gradients_of(careless), gradients_of(plain));
  EXPECT_FALSE(gradients_of(careless, 0.5)[0].equal(gradients_of(plain, 0.5)[0]));
}

TEST(ActivationCheckpoint, RunsUnderTheSameAutocast) {
  const auto under = [](const Forward& forward) -> Forward {
    return [&forward](nn::Sequential& net, const Tensor& x) {
      const auto scope = here::accelerator().autocast();
      return forward(net, x).to(torch::kFloat);  // Backward comes after the scope.
    };
  };
  const Forward ours = checkpointed, wanted = plain;
  expect_equal(gradients_of(under(ours)), gradients_of(under(wanted)));
}

TEST(ActivationCheckpoint, MayBeNested) {
  const Forward nested = [](nn::Sequential& net, const Tensor& x) {
    return activation_checkpoint(
        [net](const Tensor& y) mutable { return checkpointed(net, checkpointed(net, y)); }, x);
  };
  const Forward twice = [](nn::Sequential& net, const Tensor& x) {
    return plain(net, plain(net, x));
  };
  expect_equal(gradients_of(nested), gradients_of(twice));
}

// Several inputs and outputs, some of which take no gradient, are nested, unused, or passed on.
TEST(ActivationCheckpoint, TakesNestedValues) {
  const auto run = [](bool is_checkpointed) {
    const auto a = here::full({2}, 3.0).requires_grad_(), b = here::full({2}, 5.0).requires_grad_();
    const auto mask = here::ones({2}, torch::kBool);
    const auto body = [](const std::vector<Tensor>& both, const Tensor& where, double factor) {
      const auto product = both[0] * both[1] * factor;
      return std::tuple(product,
                        std::map<std::string, Tensor>{
                            {"sum", product.sum()}, {"rows", product.argmax()}, {"same", both[0]}},
                        where);
    };
    const std::vector<Tensor> both = {a, b};
    const auto [product, more, same_mask] =
        is_checkpointed ? activation_checkpoint(body, both, mask, 2.0) : body(both, mask, 2.0);
    EXPECT_TRUE(same_mask.equal(mask));
    EXPECT_FALSE(more.at("rows").requires_grad());
    (more.at("sum") + more.at("same").sum()).backward();
    return std::vector{a.grad(), b.grad()};
  };
  expect_equal(run(true), run(false));
}

// Parameters that the function uses learn though no input takes a gradient.
TEST(ActivationCheckpoint, ReachesParametersFromInputsWithoutGradients) {
  auto net = layers(6, 1);
  const auto x = here::ones({2, 6});
  checkpointed(net, x).sum().backward();
  EXPECT_TRUE(net->parameters()[0].grad().defined());
}

TEST(ActivationCheckpoint, WithoutGradientsIsJustTheFunction) {
  const torch::NoGradGuard no_grad;
  auto net = layers(6, 1);
  const auto x = here::ones({2, 6});
  EXPECT_FALSE(checkpointed(net, x).requires_grad());
  EXPECT_TRUE(checkpointed(net, x).equal(plain(net, x)));
}

TEST(ActivationCheckpoint, RefusesWhatNothingIsKeptFor) {
  auto net = layers(6, 1);
  const auto x = here::ones({2, 6}).requires_grad_();
  const auto y = checkpointed(net, x).sum();
  EXPECT_ERROR(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true),
               std::invalid_argument, "backward with create_graph through activation_checkpoint");
  y.backward({}, /*keep_graph=*/false);
  EXPECT_ERROR(y.backward(), std::invalid_argument,
               "a second backward through activation_checkpoint, which the first one has freed");
}

TEST(ActivationCheckpoint, TakesASecondBackwardOfAGraphThatIsKept) {
  auto net = layers(6, 2);
  const auto x = here::ones({2, 6}).requires_grad_();
  const auto y = checkpointed(net, x).sum();
  y.backward({}, /*keep_graph=*/true);
  const auto once = x.grad().clone();
  y.backward();
  EXPECT_TRUE(x.grad().equal(once * 2));
}

// Four blocks, each of which keeps ten times its input: the peak is that of one.
TEST(ActivationCheckpoint, KeepsLessMemory) {
  auto& accelerator = here::accelerator();
  const auto peak = [&](bool is_checkpointed) {
    const auto x = here::ones({1 << 16}).requires_grad_();
    const auto block = [](const Tensor& y) {
      auto z = y;
      for (int i = 0; i < 10; ++i) z = z.sin();
      return z;
    };
    accelerator.synchronize();
    accelerator.reset_peak_memory_stats();
    const int64_t before = accelerator.memory_allocated();
    auto y = x;
    for (int i = 0; i < 4; ++i) y = is_checkpointed ? activation_checkpoint(block, y) : block(y);
    y.sum().backward();
    accelerator.synchronize();
    return accelerator.max_memory_allocated() - before;
  };
  (void)accelerator.memory_allocated();
  const int64_t whole = peak(false), less = peak(true);
  EXPECT_LT(static_cast<double>(less), 0.5 * static_cast<double>(whole));
}

TEST(ActivationCheckpoint, OfAPreparedModelTrainsAsWithout) {
  run_ranks(2, [](const World& world) {
    const auto train = [&](bool is_checkpointed) {
      Accelerator accelerator({.world = world});
      auto model = accelerator.prepare(SmallNet(4));
      {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : model->parameters()) parameter.fill_(0.1);
      }
      auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 0.01));
      for (int step = 0; step < 3; ++step) {
        const auto x = here::full({3, 4}, 1.0 * world.rank() + step);
        const auto forward = [model](const Tensor& rows) { return model->forward(rows); };
        const auto y = is_checkpointed ? activation_checkpoint(forward, x) : forward(x);
        accelerator.backward(y.pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      return copies_of(model->parameters());
    };
    expect_equal(train(true), train(false));
  });
}

}  // namespace
}  // namespace drivetrain
