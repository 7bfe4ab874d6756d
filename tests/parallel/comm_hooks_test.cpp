// SPDX-License-Identifier: Apache-2.0
#include "parallel/comm_hooks.h"

#include <drivetrain/error.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "models.h"

namespace drivetrain::parallel {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;
using Options = DistributedDataParallelOptions;

Sequential make_model() {
  return seeded(2, [] {
    return Sequential(Linear(24, 32), torch::nn::Functional(torch::tanh), Linear(32, 24));
  });
}

// The gradients of each of some steps on rank-dependent data.
std::vector<at::Tensor> gradients_under(World world, const Options& options, int steps = 4) {
  Synced<Sequential> net(world, make_model(), options);
  std::vector<at::Tensor> all;
  for (int step = 0; step < steps; ++step) {
    net.model->zero_grad();
    const auto x = seeded(step * 10 + world.rank(), [] { return here::randn({5, 24}); });
    net.forward(x).pow(2).mean().backward();
    for (const auto& gradient : gradients(*net.model)) all.push_back(gradient);
  }
  return all;
}

std::vector<std::vector<at::Tensor>> on_all(int num_ranks, const Options& options) {
  return on_ranks(num_ranks, [&](World world) { return gradients_under(world, options); });
}

struct Case {
  std::string name;
  CommHookKind kind;
  CommWrapper wrapper;
  int64_t rank;
};

const std::vector<Case> kCases = {
    {"None", CommHookKind::none, CommWrapper::none, 1},
    {"Fp16", CommHookKind::fp16, CommWrapper::none, 1},
    {"Bf16", CommHookKind::bf16, CommWrapper::none, 1},
    {"PowerSgd", CommHookKind::power_sgd, CommWrapper::none, 2},
    {"PowerSgdFp16", CommHookKind::power_sgd, CommWrapper::fp16, 1},
    {"PowerSgdBf16", CommHookKind::power_sgd, CommWrapper::bf16, 1},
    {"Batched", CommHookKind::batched_power_sgd, CommWrapper::none, 1},
    {"BatchedFp16", CommHookKind::batched_power_sgd, CommWrapper::fp16, 3},
    {"BatchedBf16", CommHookKind::batched_power_sgd, CommWrapper::bf16, 1},
};

Options options_of(const Case& test) {
  Options options;
  options.comm_hook = test.kind;
  options.comm_wrapper = test.wrapper;
  if (test.kind != CommHookKind::power_sgd && test.kind != CommHookKind::batched_power_sgd)
    return options;
  options.power_sgd.matrix_approximation_rank = test.rank;
  options.power_sgd.start_iter = 1;
  return options;
}

class CommHooks : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, CommHooks, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(CommHooks, LeaveEqualBitsOnAllRanks) {
  for (const int n : {2, 3}) {
    const auto all = on_all(n, options_of(GetParam()));
    for (const auto& one : all) expect_equal(one, all[0]);
    for (const auto& gradient : all[0]) EXPECT_TRUE(at::isfinite(gradient).all().item<bool>());
  }
}

TEST_P(CommHooks, LeaveUnusedParametersUntouched) {
  for (const double cap : {25.0, 1e-6}) {
    Options options = options_of(GetParam());
    options.bucket_cap_mb = options.first_bucket_mb = cap;
    run_ranks(3, [&](World world) {
      NamedTensors parameters;
      for (const char* name : {"all", "one", "no"})
        parameters.emplace_back(name, here::ones({8, 8}).requires_grad_());
      GradientSync sync(world, parameters, {}, options);
      for (int step = 0; step < 3; ++step) {
        for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
        at::Tensor loss = parameters[0].second.sum();
        if (world.rank() == 2) loss = loss + 3 * parameters[1].second.sum();
        loss.backward();
        EXPECT_FALSE(parameters[2].second.grad().defined());
        // Of rank one, so PowerSGD is exact as well, but not for a whole chunk as a square.
        const bool exact = GetParam().kind != CommHookKind::batched_power_sgd || cap < 1;
        EXPECT_TRUE(parameters[1].second.grad().defined());
        if (!exact) continue;
        EXPECT_TRUE(at::allclose(parameters[1].second.grad(), here::ones({8, 8}), 0.02, 0.02));
      }
    });
  }
}

// The worst a format may do: each rank's value is rounded once, and each sum once.
void expect_rounded_as(CommHookKind kind, double epsilon) {
  for (const int n : {2, 3, 4}) {
    const auto exact = on_all(n, {})[0];
    const auto rounded = on_all(n, {.comm_hook = kind})[0];
    const auto magnitude = on_ranks(n, [&](World world) {
      std::vector<at::Tensor> sums;
      Synced<Sequential> net(world, make_model());
      const auto scope = net.sync.no_sync();
      for (int step = 0; step < 4; ++step) {
        net.model->zero_grad();
        const auto x = seeded(step * 10 + world.rank(), [] { return here::randn({5, 24}); });
        net.forward(x).pow(2).mean().backward();
        for (const auto& gradient : gradients(*net.model))
          sums.push_back(all_reduce(world, gradient.abs() / n));
      }
      return sums;
    })[0];
    double largest = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      const auto error = (rounded[i] - exact[i]).abs();
      EXPECT_TRUE((error <= magnitude[i] * (epsilon * n) + 1e-7).all().item<bool>());
      largest = std::max(largest, error.max().item<double>());
    }
    EXPECT_GT(largest, 0) << "nothing was rounded";
  }
}

TEST(CommHooksFp16, RoundsAsTheFormatDoes) { expect_rounded_as(CommHookKind::fp16, 0x1p-11); }
TEST(CommHooksBf16, RoundsAsTheFormatDoes) { expect_rounded_as(CommHookKind::bf16, 0x1p-8); }

TEST(CommHooksBf16, LeavesNarrowTypesAsTheyAre) {
  run_ranks(2, [](World world) {
    const NamedTensors parameters = {{"w", here::ones({4}, at::kHalf).requires_grad_()}};
    GradientSync sync(world, parameters, {}, {.comm_hook = CommHookKind::bf16});
    // 1 + 2^-9 is no bf16.
    (parameters[0].second * (1 + 0x1p-9)).sum().backward();
    EXPECT_EQ(parameters[0].second.grad()[0].item<double>(), 1 + 0x1p-9);
  });
}

// Sends a tenth of what it gets, and says what it got.
class Tenth : public CommHook {
 public:
  Finish reduce(const World& world, const GradientChunk& chunk) override {
    chunks.push_back(chunk);
    for (const at::Tensor& gradient : chunk.gradients) gradient.mul_(0.1);
    return [this, pending = world.all_reduce_async(chunk.flat, ReduceOp::sum)]() mutable {
      pending.wait();
      ++num_finished;
    };
  }
  void chunks_changed() override { ++num_changes; }

  std::vector<GradientChunk> chunks;
  int num_finished = 0;
  int num_changes = 0;
};

TEST(CommHooksCustom, SeesEachChunkOnceAStepInOrder) {
  run_ranks(2, [](World world) {
    auto hook = std::make_shared<Tenth>();
    Options options = {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6};
    options.custom_hook = hook;
    Synced<Linear> net(world, Linear(4, 2), options);
    for (int step = 0; step < 2; ++step) {
      net.model->zero_grad();
      net.forward(here::ones({1, 4}) * (world.rank() + 1)).sum().backward();
      expect_close(gradients(*net.model), {here::full({2, 4}, 0.15), here::full({2}, 0.1)});
    }
    ASSERT_EQ(hook->chunks.size(), 4U);
    EXPECT_EQ(hook->num_finished, 4);
    EXPECT_EQ(hook->num_changes, 2);
    for (size_t i = 0; i < 4; ++i) {
      const GradientChunk& chunk = hook->chunks[i];
      EXPECT_EQ(chunk.index, i % 2);
      EXPECT_EQ(chunk.is_last, i % 2 == 1);
      EXPECT_EQ(chunk.flat.numel(), chunk.gradients[0].numel() + 1);
      EXPECT_EQ(chunk.used.numel(), 1);
      EXPECT_EQ(chunk.gradients[0].dim(), chunk.parameters[0] == 0 ? 2 : 1);
    }
  });
}

void make(const Options& options) { make_comm_hook(options); }

TEST(CommHooks, OptionsThatCannotBeHonouredAreRefused) {
  Options options;
  options.comm_wrapper = CommWrapper::fp16;
  EXPECT_ERROR(make(options), ConfigError, "comm_wrapper is set without PowerSGD");
  options.comm_hook = CommHookKind::bf16;
  EXPECT_ERROR(make(options), ConfigError, "comm_wrapper is set without PowerSGD");
  options.comm_wrapper = CommWrapper::none;
  options.power_sgd.start_iter = 10;
  EXPECT_ERROR(make(options), ConfigError,
               "options of PowerSGD are set without it; allowed: with power_sgd and "
               "batched_power_sgd");
  options.power_sgd = {};
  options.comm_wrapper = CommWrapper::fp16;
  options.comm_hook = CommHookKind::power_sgd;
  options.custom_hook = std::make_shared<Tenth>();
  EXPECT_ERROR(make(options), ConfigError, "both comm_hook and custom_hook are set");
  options.custom_hook = nullptr;
  make(options);
  const auto with = [&](auto change) {
    Options changed = options;
    change(changed.power_sgd);
    return changed;
  };
  EXPECT_ERROR(make(with([](auto& o) { o.matrix_approximation_rank = 0; })), ConfigError,
               "matrix_approximation_rank is 0; allowed: at least 1");
  EXPECT_ERROR(make(with([](auto& o) { o.start_iter = -1; })), ConfigError,
               "start_iter is -1; allowed: at least 0");
  EXPECT_ERROR(make(with([](auto& o) { o.min_compression_rate = 0; })), ConfigError,
               "min_compression_rate is 0; allowed: above 0");
  EXPECT_ERROR(make(with([](auto& o) { o.orthogonalization_epsilon = -1; })), ConfigError,
               "orthogonalization_epsilon is -1; allowed: at least 0");
}

}  // namespace
}  // namespace drivetrain::parallel
