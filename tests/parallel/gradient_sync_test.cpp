// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_sync.h"

#include <drivetrain/error.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "models.h"

namespace drivetrain::parallel {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

void sync_of(const World& world, const NamedTensors& parameters,
             const DistributedDataParallelOptions& options = {}) {
  GradientSync(world, parameters, {}, options);
}

class GradientSyncOn : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, GradientSyncOn, ::testing::ValuesIn(kWorlds));

// The loss of Linear(4, 2) on ones * (r + 1): its gradients are r + 1 and 1.
at::Tensor loss_of(Synced<Linear>& net, int rank) {
  return net.forward(here::ones({1, 4}) * (rank + 1)).sum();
}

TEST_P(GradientSyncOn, GradientsAreTheMean) {
  const int n = GetParam();
  run_ranks(n, [n](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    for (int step = 0; step < 3; ++step) {
      net.model->zero_grad();
      loss_of(net, world.rank()).backward();
      expect_close(gradients(*net.model), {here::full({2, 4}, (n + 1) / 2.0), here::ones({2})});
    }
    EXPECT_EQ(net.sync.num_reductions(), n == 1 ? 0 : 3);
  });
}

TEST_P(GradientSyncOn, ParametersAndBuffersStartAsRankZerosDo) {
  const auto values = on_ranks(GetParam(), [](World world) {
    auto made = seeded(world.rank(), [] {
      return Sequential(Linear(3, 2), torch::nn::BatchNorm1d(2), Linear(2, 0));
    });
    made[1]->named_buffers()["num_batches_tracked"].fill_(7 + world.rank());
    made[1]->named_buffers()["running_mean"].fill_(0.5 * world.rank());
    Synced<Sequential> net(world, made);
    auto all = copies(net.model->parameters());
    for (const auto& buffer : copies(net.model->buffers())) all.push_back(buffer);
    return all;
  });
  const auto expected = seeded(0, [] { return Linear(3, 2); });
  for (const auto& value : values) expect_equal(value, values[0]);
  expect_equal({values[0][0]}, {expected->weight});
  EXPECT_EQ(values[0].back().item<int64_t>(), 7);
}

TEST_P(GradientSyncOn, WithoutSyncGradientsAccumulateLocally) {
  const int n = GetParam();
  run_ranks(n, [n](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    {
      const auto scope = net.sync.no_sync();
      {
        const auto inner = net.sync.no_sync();
        loss_of(net, world.rank()).backward();
      }
      EXPECT_FALSE(net.sync.is_syncing());
      loss_of(net, world.rank()).backward();
      expect_close({net.model->weight.grad()}, {here::full({2, 4}, 2.0 * (world.rank() + 1))});
      EXPECT_EQ(net.sync.num_reductions(), 0);
    }
    EXPECT_TRUE(net.sync.is_syncing());
    loss_of(net, world.rank()).backward();
    expect_close(gradients(*net.model),
                 {here::full({2, 4}, 3 * (n + 1) / 2.0), here::full({2}, 3.0)});
    EXPECT_EQ(net.sync.num_reductions(), n == 1 ? 0 : 1);
  });
}

TEST_P(GradientSyncOn, EachOfSeveralBackwardsReduces) {
  const int n = GetParam();
  run_ranks(n, [n](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    for (int i = 0; i < 3; ++i) loss_of(net, world.rank()).backward();
    expect_close(gradients(*net.model),
                 {here::full({2, 4}, 3 * (n + 1) / 2.0), here::full({2}, 3.0)});
    EXPECT_EQ(net.sync.num_reductions(), n == 1 ? 0 : 3);
  });
}

TEST(GradientSync, NoSyncEndsWithAnException) {
  run_ranks(2, [](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    try {
      const auto scope = net.sync.no_sync();
      throw std::runtime_error("stop");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(net.sync.is_syncing());
  });
}

TEST(GradientSync, RetainedGraphsReduceEachTime) {
  run_ranks(2, [](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    const auto loss = loss_of(net, world.rank());
    loss.backward({}, true);
    loss.backward();
    expect_equal({net.model->weight.grad()}, {here::full({2, 4}, 3.0)});
  });
}

TEST(GradientSync, GradientsSetByHandCount) {
  run_ranks(2, [](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    net.model->weight.mutable_grad() = here::full({2, 4}, 10.0 * world.rank());
    loss_of(net, world.rank()).backward();
    expect_equal({net.model->weight.grad()}, {here::full({2, 4}, 1.5 + 5.0)});
  });
}

TEST(GradientSync, ZeroGradOfLibTorchWorksOnGradientsInChunks) {
  run_ranks(2, [](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    torch::optim::SGD sgd(net.model->parameters(), 0.1);
    for (const bool set_to_none : {true, false, false, true, false}) {
      sgd.zero_grad(set_to_none);
      loss_of(net, world.rank()).backward();
      expect_equal({net.model->weight.grad()}, {here::full({2, 4}, 1.5)});
      sgd.step();
    }
  });
}

// In place: the gradient that optimizers see is the chunk's memory, before and after.
TEST(GradientSync, GradientsKeptInChunksAreNotCopied) {
  run_ranks(2, [](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    loss_of(net, world.rank()).backward();
    const at::Tensor gradient = net.model->weight.grad();
    EXPECT_TRUE(gradient.is_alias_of(net.model->bias.grad()));
    net.model->zero_grad(false);
    loss_of(net, world.rank()).backward();
    EXPECT_TRUE(net.model->weight.grad().is_same(gradient));
    net.model->zero_grad();
    loss_of(net, world.rank()).backward();
    EXPECT_EQ(net.model->weight.grad().data_ptr(), gradient.data_ptr());
  });
}

TEST(GradientSync, ChunksFollowTheOrderOfArrivalOnRankZero) {
  const DistributedDataParallelOptions options = {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6};
  const auto orders = on_ranks(3, [&](World world) {
    const NamedTensors parameters = {{"a", here::ones({1}).requires_grad_()},
                                     {"b", here::ones({1}).requires_grad_()},
                                     {"c", here::ones({1}).requires_grad_()}};
    GradientSync sync(world, parameters, {}, options);
    const auto names = [&] {
      std::vector<std::string> out;
      for (const auto& chunk : sync.chunks()) out.push_back(chunk.parameters.front());
      return out;
    };
    EXPECT_EQ(names(), (std::vector<std::string>{"c", "b", "a"}));
    // What is used last in forward arrives first in backward.
    const std::vector<size_t> use =
        world.rank() == 0 ? std::vector<size_t>{1, 2, 0} : std::vector<size_t>{0, 1, 2};
    for (int step = 0; step < 2; ++step) {
      sync.before_forward(true);
      at::Tensor x = here::full({1}, world.rank() + 1.0);
      for (const size_t i : use) x = x * parameters[i].second;
      for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
      x.backward();
      for (const auto& [name, parameter] : parameters)
        EXPECT_FLOAT_EQ(parameter.grad().item<float>(), 2);
    }
    EXPECT_EQ(sync.num_reductions(), 6);
    return names();
  });
  for (const auto& order : orders) EXPECT_EQ(order, (std::vector<std::string>{"a", "c", "b"}));
}

TEST(GradientSync, SeveralModelsShareOneWorld) {
  run_ranks(3, [](World world) {
    Synced<Linear> first(world, Linear(4, 2));
    Synced<Linear> second(world, Linear(4, 2));
    Synced<Linear> third(world, Linear(4, 2));
    for (int step = 0; step < 2; ++step) {
      for (auto* net : {&first, &second, &third}) net->model->zero_grad();
      const auto loss = loss_of(first, world.rank()) + 2 * loss_of(second, world.rank());
      loss.backward();
      loss_of(third, world.rank()).backward();
      expect_close(
          {first.model->weight.grad(), second.model->weight.grad(), third.model->weight.grad()},
          {here::full({2, 4}, 2.0), here::full({2, 4}, 4.0), here::full({2, 4}, 2.0)});
    }
  });
}

TEST(GradientSync, AWorldOfOneAttachesNothing) {
  auto model = here::moved(Linear(4, 2));
  const auto node = torch::autograd::impl::grad_accumulator(model->weight);
  GradientSync sync(World::single(), named_parameters(*model), {}, {});
  EXPECT_TRUE(node->post_hooks().empty());
  EXPECT_TRUE(sync.chunks().empty());
  sync.before_forward(true);
  model->forward(here::ones({1, 4})).sum().backward();
  sync.after_backward();
  EXPECT_TRUE(model->weight.grad().equal(here::ones({2, 4})));
}

TEST(GradientSync, LeavesAPlainModelBehind) {
  run_ranks(2, [](World world) {
    auto model = here::moved(Linear(4, 2));
    {
      GradientSync sync(world, named_parameters(*model), {}, {});
    }
    model->forward(here::ones({1, 4}) * (world.rank() + 1)).sum().backward();
    EXPECT_TRUE(model->weight.grad().equal(here::full({2, 4}, world.rank() + 1.0)));
  });
}

TEST(GradientSync, ModelsThatDifferAreRefusedEverywhere) {
  run_ranks(3, [](World world) {
    auto model = here::moved(Linear(4, world.rank() == 1 ? 3 : 2));
    EXPECT_ERROR(sync_of(world, named_parameters(*model)), ConfigError,
                 "the model of rank 1 is another: parameter 0 is \"weight\" Float [3, 4] "
                 "requires_grad, on rank 0 it is \"weight\" Float [2, 4] requires_grad");
    auto other = here::moved(Linear(torch::nn::LinearOptions(4, 2).bias(world.rank() != 2)));
    EXPECT_ERROR(sync_of(world, named_parameters(*other)), ConfigError,
                 "the model of rank 2 is another: parameter 1 is absent, on rank 0 it is \"bias\"");
  });
}

TEST(GradientSync, OptionsOutOfRangeAreRefused) {
  auto model = here::moved(Linear(4, 2));
  const World world = World::single();
  const auto parameters = named_parameters(*model);
  const DistributedDataParallelOptions no_cap = {.bucket_cap_mb = 0};
  const DistributedDataParallelOptions negative = {.first_bucket_mb = -1};
  EXPECT_ERROR(sync_of(world, parameters, no_cap), ConfigError,
               "bucket_cap_mb is 0; allowed: above 0");
  EXPECT_ERROR(sync_of(world, parameters, negative), ConfigError,
               "first_bucket_mb is -1; allowed: above 0");
  const NamedTensors computed = {{"w", model->weight * 2}};
  EXPECT_ERROR(sync_of(world, computed), ConfigError,
               "parameter \"w\" is the result of a computation");
}

}  // namespace
}  // namespace drivetrain::parallel
