// SPDX-License-Identifier: Apache-2.0
// Parameters that are not plain: unused, frozen, tied, of odd shapes, layouts and types.
#include <drivetrain/error.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "models.h"

namespace drivetrain::parallel {
namespace {

using torch::nn::Linear;

NamedTensors leaves(const std::vector<at::Tensor>& tensors) {
  NamedTensors named;
  for (size_t i = 0; i < tensors.size(); ++i)
    named.emplace_back("p" + std::to_string(i), tensors[i].requires_grad_());
  return named;
}

at::Tensor gradient_of(const NamedTensors& parameters, size_t i) {
  return parameters[i].second.grad();
}

TEST(Unused, EverywhereIsLeftUntouchedWeightDecayIncluded) {
  run_ranks(3, [](World world) {
    const auto parameters = leaves({here::ones({2}), here::ones({3})});
    GradientSync sync(world, parameters, {});
    torch::optim::AdamW adamw({parameters[0].second, parameters[1].second},
                              torch::optim::AdamWOptions(0.1).weight_decay(0.5));
    for (int step = 0; step < 3; ++step) {
      adamw.zero_grad();
      sync.before_forward(true);
      (parameters[0].second * (world.rank() + 1)).sum().backward();
      EXPECT_FALSE(gradient_of(parameters, 1).defined());
      expect_close({gradient_of(parameters, 0)}, {here::full({2}, 2.0)});
      adamw.step();
    }
    EXPECT_TRUE(parameters[1].second.equal(here::ones({3})));
    EXPECT_FALSE(parameters[0].second.equal(here::ones({2})));
    EXPECT_EQ(sync.num_reductions(), 3);
  });
}

TEST(Unused, OnSomeRanksCountsAsZeroThere) {
  for (const int n : {2, 3, 4, 7}) {
    run_ranks(n, [n](World world) {
      const auto parameters = leaves({here::ones({2}), here::ones({3}), here::ones({1})});
      GradientSync sync(world, parameters, {});
      for (int step = 0; step < 4; ++step) {
        for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
        sync.before_forward(true);
        at::Tensor loss = parameters[0].second.sum();
        if (world.rank() == step % n) loss = loss + 6 * parameters[1].second.sum();
        loss.backward();
        expect_close({gradient_of(parameters, 0), gradient_of(parameters, 1)},
                     {here::ones({2}), here::full({3}, 6.0 / n)});
        EXPECT_FALSE(gradient_of(parameters, 2).defined());
      }
    });
  }
}

// As in plain LibTorch: zeros, not nothing, so weight decay applies.
TEST(Unused, AfterZeroGradWithoutSetToNoneHasAZeroGradient) {
  run_ranks(2, [](World world) {
    const auto parameters = leaves({here::ones({2}), here::ones({3})});
    GradientSync sync(world, parameters, {});
    (parameters[0].second.sum() + parameters[1].second.sum()).backward();
    for (const auto& [name, parameter] : parameters) parameter.mutable_grad().zero_();
    (parameters[0].second * (world.rank() + 1)).sum().backward();
    expect_equal({gradient_of(parameters, 0), gradient_of(parameters, 1)},
                 {here::full({2}, 1.5), here::zeros({3})});
  });
}

TEST(Unused, EverywhereInABackwardThatOnlyOneRankHas) {
  run_ranks(3, [](World world) {
    const auto parameters = leaves({here::ones({2})});
    GradientSync sync(world, parameters, {});
    for (int step = 0; step < 3; ++step) {
      parameters[0].second.mutable_grad().reset();
      sync.before_forward(true);
      const at::Tensor other = here::ones({1}).requires_grad_();
      const bool has = world.rank() == 1 && step > 0;
      (has ? parameters[0].second.sum() * 3 : other.sum()).backward();
      sync.after_backward();
      sync.after_backward();  // has nothing left to do
      EXPECT_EQ(gradient_of(parameters, 0).defined(), step > 0);
      if (step > 0) expect_close({gradient_of(parameters, 0)}, {here::ones({2})});
      EXPECT_EQ(sync.num_reductions(), step + 1);
    }
  });
}

TEST(Frozen, FromTheStartHasNoSlot) {
  run_ranks(2, [](World world) {
    auto model = here::moved(Linear(4, 2));
    model->weight.requires_grad_(false);
    model->weight.fill_(world.rank());
    GradientSync sync(world, named_parameters(*model), {});
    EXPECT_TRUE(model->weight.equal(here::zeros({2, 4})));
    ASSERT_EQ(sync.chunks().size(), 1U);
    EXPECT_EQ(sync.chunks()[0].parameters, std::vector<std::string>{"bias"});
    (model->forward(here::ones({1, 4})) * (world.rank() + 1)).sum().backward();
    EXPECT_FALSE(model->weight.grad().defined());
    EXPECT_TRUE(model->bias.grad().equal(here::full({2}, 1.5)));
  });
}

TEST(Frozen, LaterKeepsItsGradientAndValue) {
  run_ranks(3, [](World world) {
    const auto parameters = leaves({here::ones({2}), here::ones({3})});
    GradientSync sync(world, parameters, {});
    const auto backward = [&] {
      sync.before_forward(true);
      at::Tensor loss = parameters[0].second.sum();
      if (parameters[1].second.requires_grad()) loss = loss + parameters[1].second.sum() / 3;
      (loss * (world.rank() + 1)).backward();
    };
    backward();
    const at::Tensor before = gradient_of(parameters, 1).clone();
    parameters[1].second.requires_grad_(false);
    backward();
    backward();
    EXPECT_TRUE(gradient_of(parameters, 1).equal(before));
    expect_close({gradient_of(parameters, 0)}, {here::full({2}, 6.0)});
    parameters[1].second.requires_grad_(true);
    parameters[1].second.mutable_grad().reset();
    backward();
    expect_close({gradient_of(parameters, 1)}, {here::full({3}, 2.0 / 3)});
  });
}

TEST(Frozen, UnfrozenIsTakenInAtTheNextForward) {
  run_ranks(3, [](World world) {
    Synced<Linear> net(world, [] {
      auto model = here::moved(Linear(4, 2));
      model->weight.requires_grad_(false);
      return model;
    }());
    const auto backward = [&] {
      net.model->zero_grad();
      net.forward(here::ones({1, 4}) * (world.rank() + 1)).sum().backward();
    };
    backward();
    net.model->weight.requires_grad_(true);
    backward();
    backward();
    expect_close(gradients(*net.model), {here::full({2, 4}, 2.0), here::ones({2})});
    ASSERT_EQ(net.sync.chunks().size(), 1U);
    EXPECT_EQ(net.sync.chunks()[0].parameters, (std::vector<std::string>{"weight", "bias"}));
  });
}

TEST(Frozen, UnfreezingOtherParametersElsewhereIsRefused) {
  run_ranks(2, [](World world) {
    auto model = here::moved(Linear(4, 2));
    model->weight.requires_grad_(false);
    model->bias.requires_grad_(false);
    GradientSync sync(world, named_parameters(*model), {});
    EXPECT_TRUE(sync.chunks().empty());
    sync.before_forward(true);
    (world.rank() == 0 ? model->weight : model->bias).requires_grad_(true);
    EXPECT_ERROR(sync.before_forward(true), ConfigError,
                 "the model of rank 1 is another: parameter 0 is \"weight\" Float [2, 4], on "
                 "rank 0 it is \"weight\" Float [2, 4] requires_grad");
  });
}

TEST(Tied, ParametersHaveOneSlotAndOneGradient) {
  run_ranks(2, [](World world) {
    const at::Tensor weight = here::ones({2, 2}).requires_grad_();
    const NamedTensors parameters = {{"in", weight}, {"none", at::Tensor()}, {"out", weight}};
    GradientSync sync(world, parameters, {});
    ASSERT_EQ(sync.chunks().size(), 1U);
    EXPECT_EQ(sync.chunks()[0].parameters, std::vector<std::string>{"in"});
    const at::Tensor x = here::eye(2) * (world.rank() + 1);
    torch::matmul(torch::matmul(x, weight), weight).sum().backward();
    EXPECT_TRUE(weight.grad().equal(here::full({2, 2}, 6.0)));
  });
}

TEST(Shapes, OfEveryKindAreReduced) {
  run_ranks(3, [](World world) {
    const auto parameters = leaves({
        here::ones({}),          // 0-dim
        here::ones({0, 3}),      // empty
        here::ones({2, 3}).t(),  // transposed
        here::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
        here::ones({3, 4}).slice(1, 0, 2),  // with gaps
        here::ones({1, 3, 1}),
    });
    GradientSync sync(world, parameters, {});
    for (int step = 0; step < 3; ++step) {
      for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
      at::Tensor loss = here::zeros({});
      std::vector<at::Tensor> expected;
      for (const auto& [name, parameter] : parameters) {
        const at::Tensor weights = here::arange(parameter.numel()).reshape(parameter.sizes());
        loss = loss + (parameter * weights * (world.rank() + 1)).sum();
        expected.push_back(weights.to(at::kFloat) * 2);
      }
      loss.backward();
      for (size_t i = 0; i < parameters.size(); ++i) {
        expect_close({gradient_of(parameters, i)}, {expected[i]});
        const at::Tensor& parameter = parameters[i].second;
        if (!parameter.is_non_overlapping_and_dense()) continue;
        EXPECT_EQ(gradient_of(parameters, i).strides(), parameter.strides());
      }
    }
    EXPECT_EQ(sync.num_reductions(), 3);
  });
}

TEST(Types, HaveChunksOfTheirOwn) {
  run_ranks(2, [](World world) {
    const auto parameters =
        leaves({here::ones({2}), here::ones({2}, at::kDouble), here::ones({2}, at::kBFloat16),
                here::ones({2}, at::kHalf), here::ones({2}, at::kComplexFloat), here::ones({2})});
    GradientSync sync(world, parameters, {});
    ASSERT_EQ(sync.chunks().size(), 5U);
    for (int step = 0; step < 2; ++step) {
      for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
      at::Tensor loss = here::zeros({}, at::kDouble);
      for (const auto& [name, parameter] : parameters) {
        const at::Tensor real = parameter.is_complex() ? at::real(parameter) : parameter;
        loss = loss + (real * (world.rank() + 1)).sum().to(at::kDouble);
      }
      loss.backward();
      for (const auto& [name, parameter] : parameters)
        EXPECT_TRUE(parameter.grad().equal(here::full({2}, 1.5, parameter.options())));
    }
    EXPECT_EQ(sync.num_reductions(), 10);
  });
}

TEST(Types, ComplexGradientsKeepBothParts) {
  run_ranks(2, [](World world) {
    const auto parameters = leaves({here::ones({3}, at::kComplexDouble)});
    GradientSync sync(world, parameters, {});
    const auto z = parameters[0].second * c10::complex<double>(world.rank() + 1, 2 * world.rank());
    (at::real(z).sum() + at::imag(z).sum()).backward();
    // d/dz of Re(cz) + Im(cz) is conj(c) (1 + i): 1+i on rank 0, (2-2i)(1+i) = 4 on rank 1.
    EXPECT_TRUE(parameters[0].second.grad().equal(
        here::full({3}, c10::complex<double>(2.5, 0.5), at::kComplexDouble)));
  });
}

TEST(Sparse, GradientsBecomeDense) {
  if (!here::is_cpu()) GTEST_SKIP() << "sparse tensors are not simulated";
  run_ranks(2, [](World world) {
    auto model = here::moved(torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)));
    GradientSync sync(world, named_parameters(*model), {});
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model->forward(here::full({1}, world.rank() + 1, at::kLong)).sum().backward();
      const at::Tensor gradient = model->weight.grad();
      EXPECT_EQ(gradient.layout(), at::kStrided);
      const at::Tensor rows = here::tensor({0.0, 0.5, 0.5, 0.0}).unsqueeze(1);
      EXPECT_TRUE(gradient.equal(rows.expand({4, 2}).to(at::kFloat)));
    }
  });
}

TEST(Types, ConvertingAPreparedModelIsRefused) {
  run_ranks(2, [](World world) {
    const std::string device = here::device().str();
    auto model = here::moved(Linear(4, 2));
    GradientSync sync(world, named_parameters(*model), {});
    model->to(at::kDouble);
    EXPECT_ERROR(sync.before_forward(true), ConfigError,
                 "is Double on " + device + "; allowed: Float on " + device +
                     ", as when its model was prepared");
    // LibTorch drops the hooks of a parameter that is converted, there and back too.
    model->to(at::kFloat);
    sync.before_forward(true);
    (model->forward(here::ones({1, 4})) * (world.rank() + 1)).sum().backward();
    EXPECT_TRUE(model->weight.grad().equal(here::full({2, 4}, 1.5)));
  });
}

TEST(Types, GradientsOfAnotherAreRefused) {
  run_ranks(2, [](World world) {
    const std::string device = here::device().str();
    auto model = here::moved(Linear(4, 2));
    GradientSync sync(world, named_parameters(*model), {});
    model->weight.mutable_grad() = here::ones({2, 4}, at::kDouble);
    EXPECT_ERROR(
        model->bias.sum().backward(), ConfigError,
        "the gradient of \"weight\" is Double on " + device + "; allowed: Float on " + device);
  });
}

}  // namespace
}  // namespace drivetrain::parallel
