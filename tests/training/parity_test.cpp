// SPDX-License-Identifier: Apache-2.0
// Several ranks train to the parameters of plain LibTorch in one process on the same global
// batches: bit-equal across the ranks, within 1e-6 of the one process.
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "ranks.h"
#include "small_net.h"

namespace drivetrain {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace optim = torch::optim;

constexpr int kSteps = 6;
constexpr int64_t kBatch = 84;  // divides by 1, 2, 3, 4 and 7

// Made once, before any rank starts: the random generator belongs to the process.
struct Problem {
  Tensor x, y;
  Tensors initial;
};

const Problem& problem() {
  static const Problem made = [] {
    torch::manual_seed(5);
    const auto x = torch::randn({kSteps * kBatch, 4});
    return Problem{x, x.sum(1, /*keepdim=*/true).sin(), copies_of(SmallNet(4)->parameters())};
  }();
  return made;
}

SmallNet net() {
  torch::NoGradGuard no_grad;
  SmallNet model(4);
  const auto parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(problem().initial[i]);
  return model;
}

Tensor loss_of_rows(auto& model, int64_t begin, int64_t count) {
  const auto device = model->parameters()[0].device();
  const auto rows = [&](const Tensor& t) { return t.slice(0, begin, begin + count).to(device); };
  return torch::mse_loss(model->forward(rows(problem().x)), rows(problem().y));
}

// Plain LibTorch, one process, whole batches, on the CPU whatever the device of the ranks.
template <class O, class Options>
Tensors train_plain(const Options& options, double max_norm) {
  auto model = net();
  O optimizer(model->parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of_rows(model, step * kBatch, kBatch).backward();
    if (max_norm > 0) torch::nn::utils::clip_grad_norm_(model->parameters(), max_norm);
    optimizer.step();
  }
  return copies_of(model->parameters());
}

// The same with an Accelerator: each rank its share of every batch. Ranks start from models of
// their own, which must not matter.
template <class O, class Options>
Tensors train_prepared(const World& world, const Options& options, double max_norm) {
  Accelerator accelerator({.world = world});
  auto initial = net();
  if (world.rank() > 0) torch::nn::init::constant_(initial->first->weight, world.rank());
  auto model = accelerator.prepare(initial);
  auto optimizer = accelerator.prepare(O(model->parameters(), options));
  const int64_t share = kBatch / world.world_size();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    accelerator.backward(loss_of_rows(model, step * kBatch + world.rank() * share, share));
    if (max_norm > 0) accelerator.clip_grad_norm_(model->parameters(), max_norm);
    optimizer.step();
  }
  return copies_of(model->parameters());
}

void expect_close(const Tensors& ours, const Tensors& theirs) {
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours[i].cpu(), theirs[i], /*rtol=*/1e-6, /*atol=*/1e-6))
        << "parameter " << i << " is off by "
        << (ours[i].cpu() - theirs[i]).abs().max().item<double>();
}

template <class O, class Options>
void expect_parity(const Options& options, double max_norm = 0) {
  const Tensors plain = train_plain<O>(options, max_norm);
  for (const int world_size : {1, 2, 3, 4, 7}) {
    std::vector<Tensors> ranks(world_size);
    run_ranks(world_size, [&](const World& world) {
      ranks[world.rank()] = train_prepared<O>(world, options, max_norm);
    });
    expect_close(ranks[0], plain);
    for (const Tensors& other : ranks)
      for (size_t i = 0; i < other.size(); ++i)
        EXPECT_TRUE(torch::equal(other[i].cpu(), ranks[0][i].cpu())) << "world " << world_size;
  }
}

TEST(Parity, Sgd) { expect_parity<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9)); }
TEST(Parity, AdamW) { expect_parity<optim::AdamW>(optim::AdamWOptions(1e-2)); }
TEST(Parity, Adagrad) { expect_parity<optim::Adagrad>(optim::AdagradOptions(1e-2)); }
TEST(Parity, Rmsprop) { expect_parity<optim::RMSprop>(optim::RMSpropOptions(1e-3)); }
// Gradients of two micro-batches added up without communication, then averaged once.
TEST(Parity, NoSyncAddsUpTheSameGradients) {
  auto plain = net();
  loss_of_rows(plain, 0, 24).backward();
  loss_of_rows(plain, 24, 24).backward();
  run_ranks(2, [&](const World& world) {
    Accelerator accelerator({.world = world});
    auto model = accelerator.prepare(net());
    {
      const auto no_sync = accelerator.no_sync(model);
      accelerator.backward(loss_of_rows(model, world.rank() * 12, 12));
    }
    accelerator.backward(loss_of_rows(model, 24 + world.rank() * 12, 12));
    const auto ours = model->parameters(), theirs = plain->parameters();
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].grad().defined(), theirs[i].grad().defined());
      if (!ours[i].grad().defined()) continue;
      EXPECT_TRUE(torch::allclose(ours[i].grad().cpu(), theirs[i].grad(), 1e-5, 1e-6)) << i;
    }
  });
}

// Rank 0 has three batches, rank 1 one: what rank 1 lacks counts as zero.
TEST(Parity, UnevenInputsAreJoined) {
  std::vector<Tensors> ranks(2);
  run_ranks(2, [&](const World& world) {
    Accelerator accelerator({.world = world});
    auto model = accelerator.prepare(net());
    auto optimizer = accelerator.prepare(optim::SGD(model->parameters(), 0.1));
    accelerator.join_uneven_inputs(
        [&] {
          for (int step = 0; step < (world.rank() == 0 ? 3 : 1); ++step) {
            optimizer.zero_grad();
            accelerator.backward(loss_of_rows(model, step * 8, 8));
            optimizer.step();
          }
        },
        model);
    ranks[world.rank()] = copies_of(model->parameters());
  });
  auto plain = net();
  optim::SGD optimizer(plain->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (loss_of_rows(plain, step * 8, 8) * (step == 0 ? 1.0 : 0.5)).backward();
    optimizer.step();
  }
  expect_close(ranks[0], copies_of(plain->parameters()));
  for (size_t i = 0; i < ranks[0].size(); ++i)
    EXPECT_TRUE(torch::equal(ranks[0][i].cpu(), ranks[1][i].cpu()));
}

TEST(Parity, ClippedGradients) { expect_parity<optim::SGD>(optim::SGDOptions(0.5), 0.05); }

}  // namespace
}  // namespace drivetrain
