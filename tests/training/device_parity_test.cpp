// SPDX-License-Identifier: Apache-2.0
// The whole of a training step on devices and on the CPU, in the same worlds: where the same
// kernels run, the same bits.
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include "comm/thread_backend.h"
#include "ranks.h"
#include "test_device.h"

namespace drivetrain {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace nn = torch::nn;
namespace optim = torch::optim;

constexpr int kSteps = 4;
constexpr int64_t kRows = 6;  // of a rank's batch

nn::Sequential net() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 4, 3).bias(false)), nn::BatchNorm2d(4),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(16, 12), nn::Tanh(),
                        nn::Linear(12, 5));
}

// Drawn before any rank starts: the generator is the process's.
struct Problem {
  Tensors initial;
  std::vector<Tensor> samples;  // images, with the label in the corner
};

const Problem& problem() {
  static const Problem made = [] {
    torch::manual_seed(3);
    Problem p{net()->parameters(), {}};
    for (int64_t i = 0; i < 7 * kSteps * kRows; ++i) {
      p.samples.push_back(torch::randn({1, 6, 6}));
      p.samples.back()[0][0][0] = i % 5;
    }
    return p;
  }();
  return made;
}

template <class O, class Options>
struct Recipe {
  Options optimizer;
  DistributedDataParallelOptions ddp = {};
  double max_norm = 0;

  // Parameters, buffers, the last gradients and the losses of all ranks.
  Tensors train(const World& world, bool cpu) const {
    Accelerator accelerator({.config = {.cpu = cpu}, .world = world, .ddp = ddp});
    EXPECT_EQ(accelerator.device(), cpu ? at::Device(c10::kCPU) : here::device());
    auto plain = net();
    for (size_t i = 0; i < problem().initial.size(); ++i)
      plain->parameters()[i].detach().copy_(problem().initial[i]);
    auto model = accelerator.prepare(plain);
    auto stepper = accelerator.prepare(O(model->parameters(), optimizer));
    const Tensors part(problem().samples.begin(),
                       problem().samples.begin() + world.world_size() * kSteps * kRows);
    auto batches = accelerator.prepare(DataLoader(part, {.batch_size = kRows, .num_workers = 2}));
    Tensors losses;
    for (auto& batch : batches) {
      EXPECT_EQ(batch.device(), accelerator.device());
      const auto label = batch.select(1, 0).select(1, 0).select(1, 0).to(torch::kLong);
      stepper.zero_grad();
      const auto loss = nn::functional::cross_entropy(model->forward(batch), label);
      accelerator.backward(loss);
      if (max_norm > 0)
        losses.push_back(accelerator.clip_grad_norm_(model->parameters(), max_norm));
      stepper.step();
      losses.push_back(accelerator.gather(loss.detach()));
    }
    EXPECT_EQ(losses.size(), max_norm > 0 ? 2 * kSteps : kSteps);
    return on_cpu(*model, losses);
  }

  static Tensors on_cpu(const nn::Module& model, const Tensors& losses) {
    Tensors all;
    for (const Tensor& p : model.parameters()) {
      all.push_back(p.detach().cpu());
      all.push_back(p.grad().cpu());
    }
    for (const Tensor& b : model.buffers()) all.push_back(b.cpu());
    for (const Tensor& l : losses) all.push_back(l.cpu());
    return all;
  }
};

// tolerance 0: the same bits.
template <class O, class Options>
void expect_same(const Recipe<O, Options>& recipe, double tolerance = 0) {
  if (here::is_cpu()) GTEST_SKIP() << "there is no other device to compare with";
  problem();
  for (const int world_size : {1, 2, 3, 4, 7})
    run_ranks(world_size, [&](const World& world) {
      const Tensors there = recipe.train(world, false), here = recipe.train(world, true);
      ASSERT_EQ(there.size(), here.size());
      for (size_t i = 0; i < here.size(); ++i)
        EXPECT_TRUE(tolerance == 0 ? torch::equal(there[i], here[i])
                                   : torch::allclose(there[i], here[i], tolerance, tolerance))
            << "world " << world_size << ", tensor " << i << " is off by "
            << (there[i] - here[i]).abs().max();
    });
}

template <class O, class Options>
void expect_same_under(CommHookKind hook, const Options& options) {
  Recipe<O, Options> recipe{options};
  recipe.ddp.comm_hook = hook;
  recipe.ddp.bucket_cap_mb = recipe.ddp.first_bucket_mb = 5e-4;  // several chunks
  if (hook == CommHookKind::power_sgd || hook == CommHookKind::batched_power_sgd)
    recipe.ddp.power_sgd.start_iter = 1;
  expect_same(recipe);
}

const auto kSgd = optim::SGDOptions(0.1).momentum(0.9);

TEST(DeviceParity, Sgd) { expect_same(Recipe<optim::SGD, optim::SGDOptions>{kSgd}); }
TEST(DeviceParity, Adagrad) {
  expect_same(Recipe<optim::Adagrad, optim::AdagradOptions>{optim::AdagradOptions(0.05)});
}
TEST(DeviceParity, Rmsprop) {
  expect_same(Recipe<optim::RMSprop, optim::RMSpropOptions>{optim::RMSpropOptions(0.01)});
}
// On the CPU the step is Drivetrain's own kernel, on a device LibTorch's.
TEST(DeviceParity, AdamW) {
  expect_same(Recipe<optim::AdamW, optim::AdamWOptions>{optim::AdamWOptions(0.01)}, 1e-5);
}
TEST(DeviceParity, ClippedGradients) {
  Recipe<optim::SGD, optim::SGDOptions> recipe{kSgd};
  recipe.max_norm = 0.1;
  // The norm is another kernel's on the CPU.
  expect_same(recipe, 1e-6);
}
TEST(DeviceParity, SmallChunks) { expect_same_under<optim::SGD>(CommHookKind::none, kSgd); }
TEST(DeviceParity, Float16OnTheWire) { expect_same_under<optim::SGD>(CommHookKind::fp16, kSgd); }
TEST(DeviceParity, Bfloat16OnTheWire) { expect_same_under<optim::SGD>(CommHookKind::bf16, kSgd); }
TEST(DeviceParity, PowerSgd) { expect_same_under<optim::SGD>(CommHookKind::power_sgd, kSgd); }
TEST(DeviceParity, BatchedPowerSgd) {
  expect_same_under<optim::SGD>(CommHookKind::batched_power_sgd, kSgd);
}

// The devices once more, as those of a vendor with a communication library of its own.
class Vendor : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (here::is_cpu()) return;
    AcceleratorFacts facts = here::accelerator().facts();
    facts.name = "sim_with_threads";
    facts.communication_backend = "threads";
    register_accelerator(facts);
    register_comm_backend("threads", [](const c10::intrusive_ptr<c10d::Store>&, int rank, int size,
                                        std::chrono::milliseconds) {
      return c10::make_intrusive<ThreadBackend>(board_, rank, size, here::device().type());
    });
  }

  static std::vector<Tensors> train(int world_size) {
    board_ = std::make_shared<Board>(world_size);
    std::vector<Tensors> ranks(world_size);
    run_ranks(world_size, [&](const World& world) {
      ranks[world.rank()] = Recipe<optim::SGD, optim::SGDOptions>{kSgd}.train(world, false);
    });
    return ranks;
  }

  static inline std::shared_ptr<Board> board_;
};

TEST_F(Vendor, CarriesTheGradientsOfTraining) {
  if (here::is_cpu()) GTEST_SKIP() << "what is on the CPU travels by Gloo";
  problem();
  for (const int world_size : {1, 2, 3, 4, 7}) {
    const Tensors gloo = train(world_size)[0];
    ThreadBackend::num_calls = 0;
    const ScopedAccelerator scope("sim_with_threads");
    const auto ranks = train(world_size);
    EXPECT_GE(ThreadBackend::num_calls, world_size > 1 ? kSteps * world_size : 0);
    for (size_t i = 0; i < gloo.size(); ++i) {
      // Two ranks add in one order only.
      if (world_size <= 2) {
        EXPECT_TRUE(torch::equal(ranks[0][i], gloo[i])) << i;
      }
      EXPECT_TRUE(torch::allclose(ranks[0][i], gloo[i], 1e-5, 1e-6)) << i;
    }
  }
}

}  // namespace
}  // namespace drivetrain
