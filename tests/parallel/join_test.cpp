// SPDX-License-Identifier: Apache-2.0
#include "parallel/join.h"

#include <drivetrain/error.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "models.h"

namespace drivetrain::parallel {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;

// The number of batches of a rank, by example.
struct Case {
  std::vector<int> batches;
  bool by_initial_world_size;
};

class Joined : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Uneven, Joined,
                         ::testing::Values(Case{{2, 1}, true}, Case{{0, 2}, true},
                                           Case{{0, 0}, true}, Case{{3, 3, 3}, true},
                                           Case{{1, 4, 2}, true}, Case{{1, 4, 2}, false},
                                           Case{{3, 0, 1, 2}, false}, Case{{4}, true},
                                           Case{{5, 0, 1, 2, 3, 0, 5}, true}));

// The parameter after SGD on gradients of ones * (r + 1), worked out by hand.
double expected_after(const Case& test) {
  double value = 0;
  const int most = *std::max_element(test.batches.begin(), test.batches.end());
  for (int step = 0; step < most; ++step) {
    double sum = 0;
    int active = 0;
    for (size_t rank = 0; rank < test.batches.size(); ++rank) {
      if (test.batches[rank] <= step) continue;
      sum += static_cast<double>(rank + 1);
      ++active;
    }
    value -= 0.5 * sum /
             (test.by_initial_world_size ? static_cast<double>(test.batches.size()) : active);
  }
  return value;
}

TEST_P(Joined, RanksTrainToTheEndOfTheLongest) {
  const Case& test = GetParam();
  const int n = static_cast<int>(test.batches.size());
  run_ranks(n, [&](World world) {
    const at::Tensor w = here::zeros({3}).requires_grad_();
    const at::Tensor v = here::zeros({2}).requires_grad_();
    const NamedTensors parameters = {{"w", w}, {"v", v}};
    const DistributedDataParallelOptions small = {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6};
    GradientSync sync(world, parameters, {}, small);
    torch::optim::SGD sgd({w, v}, 0.5);
    GradientSync* models[] = {&sync};
    const JoinOptions options = {.divide_by_initial_world_size = test.by_initial_world_size};
    join_uneven_inputs(world, models, options, [&] {
      for (int step = 0; step < test.batches[world.rank()]; ++step) {
        sgd.zero_grad();
        sync.before_forward(true);
        ((w.sum() + v.sum()) * (world.rank() + 1)).backward();
        sgd.step();
      }
    });
    EXPECT_FALSE(sync.is_joined());
    expect_close({w, v},
                 {here::full({3}, expected_after(test)), here::full({2}, expected_after(test))});
    // The scope leaves nothing behind.
    sgd.zero_grad();
    w.sum().backward();
    expect_close({w.grad()}, {here::ones({3})});
    EXPECT_FALSE(v.grad().defined());
  });
}

TEST(Join, AnswersBuffersAndAccumulation) {
  const auto values = on_ranks(3, [](World world) {
    Synced<Sequential> net(world,
                           seeded(4, [] { return Sequential(Linear(4, 2), BatchNorm1d(2)); }));
    torch::optim::SGD sgd(net.model->parameters(), 0.1);
    GradientSync* models[] = {&net.sync};
    join_uneven_inputs(world, models, {}, [&] {
      for (int batch = 0; batch < 6 - 2 * world.rank(); ++batch) {
        const bool synced = batch % 2 == 1;
        net.sync.set_sync(synced);
        const auto x = seeded(10 * batch + world.rank(), [] { return here::randn({5, 4}); });
        net.forward(x).pow(2).sum().backward();
        if (!synced) continue;
        sgd.step();
        sgd.zero_grad();
      }
    });
    auto all = copies(net.model->parameters());
    for (const auto& buffer : copies(net.model->buffers())) all.push_back(buffer);
    return all;
  });
  for (const auto& value : values) expect_equal(value, values[0]);
  EXPECT_EQ(values[0].back().item<int64_t>(), 6);
}

TEST(Join, AnswersSeveralModelsInOneBackward) {
  const auto values = on_ranks(3, [](World world) {
    Synced<Linear> first(world, seeded(1, [] { return Linear(4, 4); }));
    Synced<Linear> second(world, seeded(2, [] { return Linear(4, 2); }));
    std::vector<at::Tensor> all = first.model->parameters();
    for (const auto& parameter : second.model->parameters()) all.push_back(parameter);
    torch::optim::SGD sgd(all, 0.1);
    GradientSync* models[] = {&first.sync, &second.sync};
    join_uneven_inputs(world, models, {}, [&] {
      for (int step = 0; step < 1 + world.rank(); ++step) {
        sgd.zero_grad();
        second.forward(first.forward(here::ones({1, 4}) * (world.rank() + 1))).sum().backward();
        sgd.step();
      }
    });
    return copies(all);
  });
  for (const auto& value : values) expect_equal(value, values[0]);
}

TEST(Join, StopsEarlyWhereAsked) {
  run_ranks(3, [](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    GradientSync* models[] = {&net.sync};
    int steps = 0;
    const auto run = [&] {
      join_uneven_inputs(world, models, {.throw_on_early_termination = true}, [&] {
        for (; steps < 3 - (world.rank() == 1 ? 2 : 0); ++steps)
          net.forward(here::ones({1, 4})).sum().backward();
      });
    };
    EXPECT_ERROR(run(), CommError, "1 of 3 ranks ran out of batches");
    EXPECT_EQ(steps, 1);
  });
}

TEST(Join, ScopesOfOneModelDoNotNest) {
  run_ranks(2, [](World world) {
    Synced<Linear> net(world, Linear(4, 2));
    GradientSync* models[] = {&net.sync};
    const auto nested = [&] {
      join_uneven_inputs(world, models, {}, [&] { join_uneven_inputs(world, models, {}, [] {}); });
    };
    EXPECT_ERROR(nested(), ConfigError, "a scope of uneven inputs is open for this model");
    EXPECT_FALSE(net.sync.is_joined());
  });
}

TEST(Join, PassesOnWhatItsBodyThrows) {
  EXPECT_ERROR(run_ranks(2,
                         [](World world) {
                           Synced<Linear> net(world, Linear(4, 2));
                           GradientSync* models[] = {&net.sync};
                           join_uneven_inputs(world, models, {}, [&] {
                             if (world.rank() == 1) throw std::runtime_error("no more");
                           });
                         }),
               std::runtime_error, "no more");
}

}  // namespace
}  // namespace drivetrain::parallel
