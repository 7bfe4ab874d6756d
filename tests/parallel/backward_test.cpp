// SPDX-License-Identifier: Apache-2.0
// Backward passes that are not plain: second derivatives, failures, backwards within backwards;
// and buffers, which forwards change.
#include <drivetrain/error.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "models.h"

namespace drivetrain::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;

at::Tensor input(const World& world) { return here::ones({1, 4}) * (world.rank() + 1); }

TEST(SecondDerivatives, OfAGradientPenaltyAreReduced) {
  run_ranks(2, [](World world) {
    Synced<Linear> net(world, seeded(1, [] { return Linear(4, 1); }));
    net.model->weight.detach().fill_(1);
    const at::Tensor x = input(world).requires_grad_();
    const auto out = (net.forward(x) * (world.rank() + 1)).sum();
    const auto inner = torch::autograd::grad({out}, {x}, {}, {}, true)[0];
    EXPECT_EQ(net.sync.num_reductions(), 0);
    // |grad|^2 = (r + 1)^2 |w|^2: its derivative is 2 (r + 1)^2 w, 2 and 8.
    inner.pow(2).sum().backward();
    EXPECT_TRUE(net.model->weight.grad().equal(here::full({1, 4}, 5.0)));
  });
}

TEST(SecondDerivatives, ThroughReducedGradientsAreRefused) {
  run_ranks(2, [](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    const auto loss = net.forward(input(world)).pow(2).sum();
    EXPECT_ERROR(loss.backward({}, true, true), ConfigError,
                 "was made with create_graph = true; allowed: gradients without a graph");
    net.model->zero_grad();
    {
      const auto scope = net.sync.no_sync();
      loss.backward({}, true, true);
      EXPECT_TRUE(net.model->weight.grad().requires_grad());
    }
  });
}

// Passes its input on; its backward throws if told to.
struct Fuse : torch::autograd::Function<Fuse> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, bool blows) {
    context->saved_data["blows"] = blows;
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (context->saved_data["blows"].toBool()) throw std::runtime_error("blown");
    return {gradients[0], at::Tensor()};
  }
};

TEST(Failure, InBackwardLeavesTheNextOneRight) {
  const DistributedDataParallelOptions small = {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6};
  for (const auto& options : {DistributedDataParallelOptions(), small}) {
    run_ranks(2, [&](World world) {
      const NamedTensors parameters = {{"early", here::ones({2}).requires_grad_()},
                                       {"late", here::ones({2}).requires_grad_()}};
      GradientSync sync(world, parameters, {}, options);
      // Backward reaches "late", may fail, and then reaches "early".
      const auto loss = [&](bool blows) {
        const auto x = Fuse::apply(parameters[0].second * (world.rank() + 1), blows);
        return (x * parameters[1].second).sum();
      };
      for (int round = 0; round < 3; ++round) {
        EXPECT_ERROR(loss(true).backward(), std::runtime_error, "blown");
        for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
        if (round > 0) sync.before_forward(true);
        loss(false).backward();
        for (const auto& [name, parameter] : parameters)
          EXPECT_TRUE(parameter.grad().equal(here::full({2}, 1.5))) << name;
      }
    });
  }
}

TEST(Failure, OfAPeerInItsBackwardIsTold) {
  EXPECT_ERROR(run_ranks(2,
                         [](World world) {
                           Synced<Linear> net(world, Linear(4, 2));
                           const auto out = net.forward(input(world));
                           Fuse::apply(out, world.rank() == 1).sum().backward();
                         }),
               std::runtime_error, "blown");
}

// Recomputes x * w in its backward, and runs a backward through that: as activation checkpoints do.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->saved_data["w"] = w;
    context->save_for_backward({x});
    return x * w.detach();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode enable(true);
    const at::Tensor w = context->saved_data["w"].toTensor();
    torch::autograd::backward({x * w}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

TEST(Nested, BackwardsAreFinishedAtTheEndOfTheOutermost) {
  run_ranks(2, [](World world) {
    NamedTensors parameters;
    for (const char* name : {"a", "b", "c"})
      parameters.emplace_back(name, here::full({2}, 2.0).requires_grad_());
    GradientSync sync(world, parameters, {});
    for (int step = 0; step < 3; ++step) {
      for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
      sync.before_forward(true);
      // c is reached first, in a nested backward; then b in another; then a in the outer one.
      at::Tensor x = parameters[0].second * (world.rank() + 1);
      x = Recompute::apply(x, parameters[1].second);
      x = Recompute::apply(x, parameters[2].second);
      x.sum().backward();
      for (const auto& [name, parameter] : parameters)
        EXPECT_TRUE(parameter.grad().equal(here::full({2}, 6.0))) << name << parameter.grad();
      EXPECT_EQ(sync.num_reductions(), step + 1);
    }
  });
}

TEST(Nested, BackwardsThatReachAParameterTwiceAreRefused) {
  run_ranks(2, [](World world) {
    const NamedTensors parameters = {{"w", here::full({2}, 2.0).requires_grad_()}};
    GradientSync sync(world, parameters, {});
    const auto loss = [&] {
      at::Tensor x = here::ones({2}).requires_grad_() * (world.rank() + 1);
      x = Recompute::apply(x, parameters[0].second);
      return Recompute::apply(x, parameters[0].second).sum();
    };
    EXPECT_ERROR(loss().backward(), ConfigError,
                 "the gradient of \"w\" arrived twice in one backward");
    parameters[0].second.mutable_grad().reset();
    {
      const auto scope = sync.no_sync();
      loss().backward();
    }
    EXPECT_TRUE(parameters[0].second.grad().equal(here::full({2}, 4.0 * (world.rank() + 1))));
  });
}

Sequential batch_norm() { return Sequential(Linear(4, 2), BatchNorm1d(2)); }

// The mean that BatchNorm1d keeps, after one forward on this rank's own data.
double running_mean(World world, bool training, const DistributedDataParallelOptions& options,
                    bool sync = true) {
  Synced<Sequential> net(world, seeded(3, batch_norm), options);
  auto buffers = net.model[1]->named_buffers();
  buffers["running_mean"].fill_(world.rank());
  buffers["num_batches_tracked"].fill_(10 * world.rank());
  net.model->train(training);
  net.sync.set_sync(sync);
  net.forward(here::ones({3, 4}));
  EXPECT_EQ(buffers["num_batches_tracked"].item<int64_t>() >= 10,
            world.rank() > 0 && buffers["running_mean"][0].item<double>() > 0.5);
  return buffers["running_mean"][0].item<double>();
}

TEST(Buffers, AreRankZerosBeforeEachForwardInTraining) {
  const auto means = on_ranks(3, [](World world) { return running_mean(world, true, {}); });
  EXPECT_EQ(means[1], means[0]);
  EXPECT_EQ(means[2], means[0]);
}

TEST(Buffers, AreTheRanksOwnOtherwise) {
  const auto in_evaluation =
      on_ranks(2, [](World world) { return running_mean(world, false, {}); });
  EXPECT_EQ(in_evaluation, (std::vector<double>{0, 1}));
  const auto without_option = on_ranks(
      2, [](World world) { return running_mean(world, true, {.broadcast_buffers = false}); });
  EXPECT_NEAR(without_option[1] - without_option[0], 0.9, 1e-6);
  const auto without_sync =
      on_ranks(2, [](World world) { return running_mean(world, true, {}, false); });
  EXPECT_NEAR(without_sync[1] - without_sync[0], 0.9, 1e-6);
}

TEST(Buffers, OfModelsThatDifferAreRefused) {
  run_ranks(2, [](World world) {
    const auto make = [&] {
      auto model = here::moved(Linear(4, 2));
      NamedTensors buffers;
      if (world.rank() == 1) buffers.emplace_back("extra", here::ones({1}));
      GradientSync(world, named_parameters(*model), buffers);
    };
    EXPECT_ERROR(make(), ConfigError, "buffer 0 is \"extra\" Float [1], on rank 0 it is absent");
  });
}

}  // namespace
}  // namespace drivetrain::parallel
