// SPDX-License-Identifier: Apache-2.0
// The Accelerator's own calls; parity_test.cpp shows that what it trains is right.
#include <torch/script.h>
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <atomic>

#include "expect_error.h"
#include "ranks.h"
#include "scoped_env.h"
#include "small_net.h"

namespace drivetrain {
namespace {

using torch::Tensor;
using Ints = std::vector<int>;

AcceleratorOptions on(const World& world) { return {.world = world}; }

TEST(Accelerator, IsOneProcessWithoutALauncher) {
  const Accelerator accelerator;
  EXPECT_EQ(accelerator.num_processes(), 1);
  EXPECT_EQ(accelerator.process_index(), 0);
  EXPECT_TRUE(accelerator.is_main_process());
  EXPECT_TRUE(accelerator.is_last_process());
  EXPECT_FALSE(accelerator.use_distributed());
}

TEST(Accelerator, KnowsItsRank) {
  run_ranks(3, [](const World& world) {
    const Accelerator accelerator(on(world));
    EXPECT_EQ(accelerator.process_index(), world.rank());
    EXPECT_EQ(accelerator.num_processes(), 3);
    EXPECT_EQ(accelerator.is_last_process(), world.rank() == 2);
    EXPECT_TRUE(accelerator.use_distributed());
  });
}

TEST(Accelerator, SeveralWithOtherSettingsMayExist) {
  const Accelerator first({.config = {.cpu = true}});
  const Accelerator second({.config = {.accelerator = "cpu", .debug = true}});
  EXPECT_EQ(first.device(), second.device());
}

TEST(Accelerator, RefusesContradictingDevices) {
  EXPECT_ERROR(Accelerator({.config = {.accelerator = "cuda", .cpu = true}}), ConfigError,
               "cpu is set and accelerator is \"cuda\"");
}

TEST(Accelerator, RefusesADeviceThatIsAbsent) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "cuda is present";
  EXPECT_ERROR(Accelerator({.config = {.accelerator = "cuda"}}), HardwareError,
               "accelerator \"cuda\" cannot be used");
}

TEST(Prepare, ForwardKeepsDefaultsAndOtherMembersStayReachable) {
  Accelerator accelerator;
  auto model = accelerator.prepare(SmallNet(4));
  const auto x = here::randn({2, 4});
  EXPECT_TRUE(torch::equal(model->forward(x) * 2, model->forward(x, /*twice=*/true)));
  EXPECT_TRUE(torch::equal(model(x), model->forward(x)));
  EXPECT_EQ(model->width, 4);
  EXPECT_TRUE(torch::equal(model->encode(x), model->first->forward(x)));
}

TEST(Prepare, TakesEveryKindOfModel) {
  Accelerator accelerator;
  const auto x = here::randn({3, 4});
  auto holder = accelerator.prepare(torch::nn::Linear(4, 2));
  auto sequential =
      accelerator.prepare(torch::nn::Sequential(torch::nn::Linear(4, 2), torch::nn::ReLU()));
  auto pointer = accelerator.prepare(std::make_shared<torch::nn::LinearImpl>(4, 2));
  auto value = accelerator.prepare(torch::nn::LinearImpl(4, 2));
  for (const auto& y :
       {holder->forward(x), sequential->forward(x), pointer->forward(x), value->forward(x)})
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{3, 2}));
}

TEST(Prepare, TakesATorchScriptModule) {
  torch::jit::Module script("scaled");
  script.register_parameter("weight", torch::full({1}, 3.0, torch::requires_grad()),
                            /*is_buffer=*/false);
  script.define("def forward(self, x):\n  return x * self.weight\n");
  Accelerator accelerator;
  auto model = accelerator.prepare(script);
  const Tensor y = model.forward({here::ones({2})}).toTensor();
  EXPECT_TRUE(torch::equal(y, here::full({2}, 3.0)));
  accelerator.backward(y.sum());
  for (const auto& weight : model.parameters()) EXPECT_EQ(weight.grad().item<float>(), 2);
}

TEST(Prepare, OptimizerBeforeOrAfterTheModel) {
  for (const bool optimizer_first : {false, true}) {
    Accelerator accelerator;
    torch::nn::Linear plain(2, 1);
    torch::nn::init::constant_(plain->weight, 1.0);
    torch::optim::SGD sgd(plain->parameters(), 0.5);
    auto model = accelerator.prepare(plain);
    auto optimizer = optimizer_first
                         ? accelerator.prepare(std::move(sgd))
                         : accelerator.prepare(torch::optim::SGD(model->parameters(), 0.5));
    accelerator.backward(model->forward(here::ones({1, 2})).sum());
    optimizer.step();
    EXPECT_TRUE(torch::equal(model->weight, here::full({1, 2}, 0.5)));
  }
}

TEST(Prepare, SeveralAtOnceInAnyOrder) {
  Accelerator accelerator;
  torch::nn::Linear plain(2, 1);
  auto [optimizer, model, batches] =
      accelerator.prepare(torch::optim::SGD(plain->parameters(), 0.5), plain,
                          DataLoader(std::vector<Tensor>(5, torch::ones({2})), {.batch_size = 2}));
  int count = 0;
  for (auto& batch : batches) {
    optimizer.zero_grad();
    accelerator.backward(model->forward(batch).sum());
    optimizer.step();
    ++count;
  }
  EXPECT_EQ(count, 3);
}

TEST(Prepare, RefusesAModelThatIsPreparedAlready) {
  run_ranks(2, [](const World& world) {
    Accelerator accelerator(on(world));
    SmallNet plain(4);
    auto model = accelerator.prepare(plain);
    EXPECT_ERROR(accelerator.prepare(accelerator.unwrap_model(model)), ConfigError,
                 "parameter first.weight belongs to a model that is prepared already");
    accelerator.free_memory(model);
    EXPECT_NO_THROW(accelerator.prepare(plain));
  });
}

TEST(Prepare, UnwrapGivesTheModelAsItWas) {
  Accelerator accelerator;
  SmallNet plain(4);
  auto model = accelerator.prepare(plain);
  model->eval();
  const SmallNet unwrapped = accelerator.unwrap_model(model);
  EXPECT_EQ(unwrapped.ptr(), plain.ptr());
  EXPECT_FALSE(unwrapped->is_training());
  EXPECT_TRUE(unwrapped->first->weight.is_same(model->first->weight));
}

TEST(Prepare, SavesAndLoadsLikeTheHolder) {
  Accelerator accelerator;
  auto model = accelerator.prepare(SmallNet(4));
  std::stringstream file;
  torch::save(model, file);
  SmallNet plain(4);
  // LibTorch puts what it loads where the file says; here, where the module is.
  torch::load(plain, file, torch::kCPU);
  EXPECT_TRUE(torch::equal(plain->first->weight, model->first->weight.cpu()));
  torch::NoGradGuard no_grad;
  model->first->weight.zero_();
  file.clear();
  file.seekg(0);
  torch::load(model, file, accelerator.device());
  EXPECT_TRUE(torch::equal(plain->first->weight, model->first->weight.cpu()));
}

TEST(Backward, RefusesWhatIsNoLoss) {
  Accelerator accelerator;
  EXPECT_ERROR(accelerator.backward(here::ones({2}, torch::requires_grad())), std::invalid_argument,
               "a loss of one element; this one has shape [2]; reduce it");
  EXPECT_ERROR(accelerator.backward(Tensor()), std::invalid_argument, "this one is undefined");
  EXPECT_ERROR(accelerator.backward(here::ones({})), std::invalid_argument,
               "does not depend on any parameter that requires a gradient");
}

TEST(Gather, UnequalRowsAndScalars) {
  run_ranks(3, [](const World& world) {
    const Accelerator accelerator(on(world));
    EXPECT_TRUE(torch::equal(accelerator.gather(here::full({world.rank()}, world.rank())),
                             here::tensor({1, 2, 2})));
    EXPECT_TRUE(torch::equal(accelerator.gather(here::scalar_tensor(world.rank())),
                             here::tensor({0.0, 1.0, 2.0}).to(torch::kFloat)));
  });
}

TEST(Reduce, ScalesAfterwards) {
  run_ranks(2, [](const World& world) {
    const Accelerator accelerator(on(world));
    const auto mine = here::tensor({1.0, 2.0}) + 2 * world.rank();
    EXPECT_TRUE(torch::equal(accelerator.reduce(mine), here::tensor({4.0, 6.0})));
    EXPECT_TRUE(torch::equal(accelerator.reduce(mine, ReduceOp::mean), here::tensor({2.0, 3.0})));
    EXPECT_TRUE(torch::equal(accelerator.reduce(mine, ReduceOp::max), here::tensor({3.0, 4.0})));
    EXPECT_TRUE(
        torch::equal(accelerator.reduce(mine, ReduceOp::sum, 0.5), here::tensor({2.0, 3.0})));
  });
}

TEST(MeanOverSamples, CountsEverySampleOnce) {
  // 9 values 0..8 on two ranks of 5: rank means 2 over 5 samples and 6.5 over 4.
  run_ranks(2, [](const World& world) {
    const Accelerator accelerator(on(world));
    const auto mean = here::scalar_tensor(world.rank() == 0 ? 2.0 : 6.5);
    EXPECT_FLOAT_EQ(accelerator.mean_over_samples(mean, world.rank() == 0 ? 5 : 4).item<float>(),
                    4);
    EXPECT_EQ(accelerator.mean_over_samples(here::scalar_tensor(NAN), 0).item<float>(), 0);
  });
  const Accelerator accelerator;
  EXPECT_ERROR(accelerator.mean_over_samples(here::ones({2}), 2), std::invalid_argument,
               "takes one number; got [2]");
  EXPECT_ERROR(accelerator.mean_over_samples(here::ones({}), -1), std::invalid_argument,
               "num_samples is -1");
}

TEST(Trigger, OfOneRankReachesAllAndResets) {
  run_ranks(3, [](const World& world) {
    Accelerator accelerator(on(world));
    EXPECT_FALSE(accelerator.check_trigger());
    if (world.rank() == 1) accelerator.set_trigger();
    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}

TEST(OnProcess, RunsThereAloneAndSaysSo) {
  run_ranks(3, [](const World& world) {
    const Accelerator accelerator(on(world));
    const auto index = [&] { return world.rank(); };
    EXPECT_EQ(accelerator.on_main_process(index),
              world.rank() == 0 ? std::optional(0) : std::nullopt);
    EXPECT_EQ(accelerator.on_last_process(index),
              world.rank() == 2 ? std::optional(2) : std::nullopt);
    EXPECT_EQ(accelerator.on_process(1, index),
              world.rank() == 1 ? std::optional(1) : std::nullopt);
    EXPECT_EQ(accelerator.on_local_process(1, [] {}), world.rank() == 1);
    EXPECT_EQ(accelerator.on_local_main_process([] {}), world.rank() == 0);
  });
}

TEST(MainProcessFirst, RunsBeforeTheOthers) {
  std::atomic<int> done = 0;
  run_ranks(4, [&](const World& world) {
    const Accelerator accelerator(on(world));
    const int before = accelerator.main_process_first([&] { return done++; });
    EXPECT_EQ(before == 0, world.rank() == 0);
    accelerator.local_main_process_first([&] { ++done; });
  });
  EXPECT_EQ(done, 8);
}

TEST(MainProcessFirst, AFailureOfTheFirstReachesTheOthers) {
  EXPECT_ERROR(run_ranks(2,
                         [](const World& world) {
                           const Accelerator accelerator(on(world));
                           accelerator.main_process_first([&] {
                             if (world.rank() == 0) throw std::runtime_error("no data here");
                           });
                         }),
               std::runtime_error, "no data here");
}

TEST(FreeMemory, ForgetsTheObjects) {
  Accelerator accelerator;
  SmallNet plain(4);
  auto model = accelerator.prepare(plain);
  Tensor tensor = here::ones({2});
  accelerator.free_memory(model, tensor);
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(model.ptr(), nullptr);
  EXPECT_EQ(plain.ptr().use_count(), 1);
}

}  // namespace
}  // namespace drivetrain
