// SPDX-License-Identifier: Apache-2.0
// LocalSgd, and the search for a batch size.
#include <torch/torch.h>

#include <c10/util/Exception.h>
#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "expect_error.h"
#include "parallel/gradient_sync.h"
#include "ranks.h"

namespace drivetrain {
namespace {

using torch::Tensor;
using Sizes = std::vector<int64_t>;

struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl() : weight(register_parameter("weight", torch::zeros({}))) {}
  Tensor forward(const Tensor& x) { return weight * x; }
  Tensor weight;
};
TORCH_MODULE(OneWeight);

// Rank r's gradient is r + 1, so after n steps its weight is -n (r + 1), and the mean is known.
TEST(LocalSgd, AveragesEverySoManyStepsAndAtTheEnd) {
  for (const int size : {1, 2, 3})
    run_ranks(size, [size](const World& world) {
      Accelerator accelerator({.world = world});
      auto model = accelerator.prepare(OneWeight());
      auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 1));
      const auto step = [&] {
        accelerator.backward(model->forward(here::full({}, world.rank() + 1)));
        optimizer.step();
        optimizer.zero_grad();
      };
      const double mean = (size + 1) / 2.0, own = world.rank() + 1;
      const auto weight = [&] { return model->weight.item<double>(); };
      {
        LocalSgd local(accelerator, model, {.steps = 2});
        step(), local.step();
        EXPECT_NEAR(weight(), -own, 1e-5);
        step(), local.step();
        EXPECT_NEAR(weight(), -2 * mean, 1e-5);
        step(), local.step();
        EXPECT_NEAR(weight(), -2 * mean - own, 1e-5);
      }
      EXPECT_NEAR(weight(), -3 * mean, 1e-5);
      step();  // gradients are averaged again
      EXPECT_NEAR(weight(), -4 * mean, 1e-5);
    });
}

TEST(LocalSgd, ThatIsOffAveragesGradients) {
  run_ranks(2, [](const World& world) {
    Accelerator accelerator({.world = world});
    auto model = accelerator.prepare(OneWeight());
    LocalSgd local(accelerator, model, {.steps = 1, .enabled = false});
    accelerator.backward(model->forward(here::full({}, world.rank() + 1)));
    EXPECT_NEAR(model->weight.grad().item<double>(), 1.5, 1e-6);
    local.step();
  });
}

TEST(LocalSgd, AnExceptionEndsItWithoutAnAverage) {
  EXPECT_ERROR(run_ranks(2,
                         [](const World& world) {
                           Accelerator accelerator({.world = world});
                           auto model = accelerator.prepare(OneWeight());
                           const LocalSgd local(accelerator, model);
                           if (world.rank() == 1) throw std::runtime_error("rank 1 is out");
                           accelerator.wait_for_everyone();
                         }),
               std::runtime_error, "rank 1");
  Accelerator accelerator;
  auto model = accelerator.prepare(OneWeight());
  EXPECT_ERROR(LocalSgd(accelerator, model, {.steps = 0}), std::invalid_argument,
               "LocalSgd over 0 steps; allowed: 1 or more");
}

TEST(BatchSizeSearch, TriesAcceleratesSizes) {
  const Accelerator accelerator;
  Sizes tried;
  const auto found = accelerator.find_executable_batch_size([&](int64_t size) {
    tried.push_back(size);
    if (size > 8) throw std::bad_alloc();
  });
  EXPECT_EQ(found, 8);
  EXPECT_EQ(tried, (Sizes{128, 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36,
                          32,  28,  25,  22, 19, 17, 15, 13, 11, 9,  8}));
}

TEST(BatchSizeSearch, KnowsLibTorchsErrorsAndNoOthers) {
  const Accelerator accelerator;
  const auto first_failing = [&](const std::function<void()>& fail) {
    return accelerator.find_executable_batch_size(
        [&](int64_t size) {
          if (size == 4) fail();
        },
        {.starting_batch_size = 4, .reduce = [](int64_t size) { return size / 2; }});
  };
  EXPECT_EQ(first_failing([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "none left"); }), 2);
  EXPECT_EQ(first_failing([] { torch::empty({int64_t{1} << 50}, torch::kByte); }), 2);
  EXPECT_ERROR(first_failing([] { throw std::runtime_error("a bug"); }), std::runtime_error,
               "a bug");
}

// One rank's memory decides for all; the models exchange nothing meanwhile.
TEST(BatchSizeSearch, AgreesOverTheRanks) {
  for (const int size : {2, 3})
    run_ranks(size, [](const World& world) {
      Accelerator accelerator({.world = world});
      auto model = accelerator.prepare(OneWeight());
      const auto found = accelerator.find_executable_batch_size(
          [&](int64_t batch) {
            if (world.rank() == 1 && batch > 100) throw std::bad_alloc();
            accelerator.backward(model->forward(here::ones({})));
          },
          {.starting_batch_size = 110});
      EXPECT_EQ(found, 99);
      EXPECT_EQ(model->scope().sync()->num_reductions(), 0);
      EXPECT_TRUE(model->scope().sync()->is_syncing());
    });
}

TEST(BatchSizeSearch, RefusesToSearchForNothing) {
  const Accelerator accelerator;
  const auto never = [](int64_t) { throw std::bad_alloc(); };
  EXPECT_ERROR(accelerator.find_executable_batch_size(never, {.starting_batch_size = 3}),
               std::runtime_error, "no batch size fits into memory, not even 1");
  EXPECT_ERROR(accelerator.find_executable_batch_size(never, {.starting_batch_size = 0}),
               std::invalid_argument, "a search for a batch size from 0; allowed: 1 or more");
  EXPECT_ERROR(
      accelerator.find_executable_batch_size(never, {.reduce = [](int64_t size) { return size; }}),
      std::invalid_argument, "the batch size after 128 is 128; allowed: less");
}

}  // namespace
}  // namespace drivetrain
