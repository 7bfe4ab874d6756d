// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation against loops written by hand, and the traps of loops written around it.
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "expect_error.h"
#include "parallel/gradient_sync.h"
#include "ranks.h"
#include "small_net.h"

namespace drivetrain {
namespace {

using torch::Tensor;
using Outcomes = std::vector<StepOutcome>;
constexpr auto kAccumulating = StepOutcome::accumulating;
constexpr auto kStepped = StepOutcome::stepped;

// One weight that starts at 0: the output is weight * x.
struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl() : weight(register_parameter("weight", torch::zeros({}))) {}
  Tensor forward(const Tensor& x) { return weight * x; }
  Tensor weight;
};
TORCH_MODULE(OneWeight);

AcceleratorOptions over(int64_t steps, std::optional<World> world = std::nullopt) {
  return {.world = std::move(world), .gradient_accumulation = {.steps = steps}};
}

// A weight with SGD of learning rate 1, so that it falls by the gradient of each update.
struct Training {
  explicit Training(Accelerator& a)
      : accelerator(a),
        model(a.prepare(OneWeight())),
        optimizer(a.prepare(torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(1)))) {}

  // A micro-batch whose loss has the gradient `slope`; what the step did.
  StepOutcome run(double slope) {
    const auto micro_batch = accelerator.accumulate(model);
    accelerator.backward(model->forward(here::full({}, slope)));
    optimizer.step();
    EXPECT_EQ(micro_batch.sync_gradients(), optimizer.outcome() != kAccumulating);
    EXPECT_EQ(accelerator.sync_gradients(), micro_batch.sync_gradients());
    const StepOutcome outcome = optimizer.outcome();
    optimizer.zero_grad();
    return outcome;
  }
  float value() const { return model->weight.item<float>(); }

  Accelerator& accelerator;
  Prepared<OneWeight> model;
  PreparedOptimizer<torch::optim::SGD> optimizer;
};

DataLoader<Tensor> loader_of(int64_t num_samples, DataLoaderOptions options = {}) {
  std::vector<Tensor> samples;
  for (int64_t i = 0; i < num_samples; ++i) samples.push_back(torch::ones({}));
  return DataLoader(std::move(samples), std::move(options));
}

// The example of Accelerate's guide: y = 2 x for x = 1 to 8, in four micro-batches or at once.
TEST(Accumulation, HasTheValueOfTheGuide) {
  for (const int64_t steps : {1, 4}) {
    Accelerator accelerator(over(steps));
    auto model = accelerator.prepare(OneWeight());
    auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 0.02));
    for (const auto& x : here::arange(8).to(torch::kFloat).add(1).chunk(steps)) {
      const auto micro_batch = accelerator.accumulate(model);
      accelerator.backward(torch::mse_loss(model->forward(x), 2 * x));
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_NEAR(model->weight.item<float>(), 2.04, 1e-6);
  }
}

// To the bit, as sums of losses divided by the number of micro-batches.
TEST(Accumulation, EqualsALoopByHand) {
  const auto x = here::randn({12, 4}), y = here::randn({12, 1});
  const auto train = [&](bool by_hand) {
    torch::manual_seed(1);
    Accelerator accelerator(over(3));
    auto model = accelerator.prepare(here::moved(SmallNet(4)));
    auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 0.01));
    for (int64_t i = 0; i < 12; ++i) {
      const auto loss = [&] {
        return torch::mse_loss(model->forward(x.slice(0, i, i + 1)), y.slice(0, i, i + 1));
      };
      if (by_hand) {
        (loss() / 3).backward();
        if (i % 3 == 2) optimizer.step(), optimizer.zero_grad();
      } else {
        const auto micro_batch = accelerator.accumulate(model);
        accelerator.backward(loss());
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    return copies_of(model->parameters());
  };
  const auto ours = train(false), wanted = train(true);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(wanted[i]));
}

TEST(Accumulation, StepsOnceAGroup) {
  Accelerator accelerator(over(2));
  Training training(accelerator);
  EXPECT_EQ(training.run(1), kAccumulating);
  EXPECT_EQ(training.value(), 0);
  EXPECT_EQ(training.run(3), kStepped);
  EXPECT_EQ(training.value(), -2);
  EXPECT_EQ(training.run(5), kAccumulating);
  EXPECT_EQ(training.run(5), kStepped);
  EXPECT_EQ(training.value(), -7);
}

// Five micro-batches by two: the last update has one, whose loss is not halved.
TEST(Accumulation, TheLastShortGroupOfAPassIsAMeanToo) {
  Accelerator accelerator(over(2));
  Training training(accelerator);
  auto batches = accelerator.prepare(loader_of(5));
  for (int epoch = 1; epoch <= 3; ++epoch) {
    Outcomes outcomes;
    for ([[maybe_unused]] auto& batch : batches) outcomes.push_back(training.run(1));
    EXPECT_EQ(outcomes, (Outcomes{kAccumulating, kStepped, kAccumulating, kStepped, kStepped}));
    EXPECT_EQ(training.value(), -3 * epoch);
  }
}

struct Counting {
  int left;
  std::optional<Tensor> next() {
    return left-- > 0 ? std::optional(torch::ones({})) : std::nullopt;
  }
};

// A stream does not say how long it is, so its last group is rescaled when it has ended.
TEST(Accumulation, TheLastShortGroupOfAStreamIsAMeanToo) {
  Accelerator accelerator(over(4));
  Training training(accelerator);
  auto batches = accelerator.prepare(DataLoader(Counting{6}));
  Outcomes outcomes;
  for ([[maybe_unused]] auto& batch : batches) outcomes.push_back(training.run(1));
  EXPECT_EQ(outcomes.back(), kStepped);
  EXPECT_EQ(training.value(), -2);
}

TEST(Accumulation, MayRunOnFromPassToPass) {
  Accelerator accelerator({.gradient_accumulation = {.steps = 2, .sync_with_dataloader = false}});
  Training training(accelerator);
  auto batches = accelerator.prepare(loader_of(3));
  Outcomes outcomes;
  for (int epoch = 0; epoch < 2; ++epoch)
    for ([[maybe_unused]] auto& batch : batches) outcomes.push_back(training.run(1));
  EXPECT_EQ(outcomes,
            (Outcomes{kAccumulating, kStepped, kAccumulating, kStepped, kAccumulating, kStepped}));
}

// Three batches that the program cuts in four: not every cut of the last one is the end.
TEST(Accumulation, BatchesThatTheProgramCutsFurtherEndWithTheirLastPart) {
  Accelerator accelerator(over(4));
  Training training(accelerator);
  auto batches = accelerator.prepare(loader_of(3));
  Outcomes outcomes;
  for ([[maybe_unused]] auto& batch : batches)
    for (int part = 0; part < 4; ++part) outcomes.push_back(training.run(1));
  EXPECT_EQ(std::ranges::count(outcomes, kStepped), 3);
  EXPECT_EQ(outcomes.back(), kStepped);
  EXPECT_EQ(training.value(), -3);
}

TEST(Accumulation, CountsForEachSetOfModels) {
  Accelerator accelerator(over(2));
  Training first(accelerator), second(accelerator);
  for (int i = 0; i < 4; ++i) {
    const auto expected = i % 2 == 0 ? kAccumulating : kStepped;
    EXPECT_EQ(first.run(1), expected);
    EXPECT_EQ(second.run(2), expected);
  }
  EXPECT_EQ(first.value(), -2);
  EXPECT_EQ(second.value(), -4);
  // Both as one set: a count of its own.
  const auto micro_batch = accelerator.accumulate(first.model, second.model);
  EXPECT_FALSE(micro_batch.sync_gradients());
}

TEST(Accumulation, ABreakAndAnInnerLoaderDoNotDisturbIt) {
  Accelerator accelerator(over(2));
  Training training(accelerator);
  auto batches = accelerator.prepare(loader_of(4));
  auto others = accelerator.prepare(loader_of(3));
  for ([[maybe_unused]] auto& batch : batches) {
    EXPECT_EQ(training.run(1), kAccumulating);
    break;
  }
  Outcomes outcomes;
  for ([[maybe_unused]] auto& batch : batches) {
    for ([[maybe_unused]] auto& other : others) {
    }
    outcomes.push_back(training.run(1));
  }
  EXPECT_EQ(outcomes, (Outcomes{kStepped, kAccumulating, kStepped, kStepped}));
  EXPECT_EQ(training.value(), -3);
}

// zero_grad() may stand before the forward, after the step, or both.
TEST(Accumulation, ZeroGradKeepsWhatIsNotUsedYet) {
  Accelerator accelerator(over(2));
  Training training(accelerator);
  for (int i = 0; i < 6; ++i) {
    const auto micro_batch = accelerator.accumulate(training.model);
    training.optimizer.zero_grad();
    accelerator.backward(training.model->forward(here::ones({})));
    training.optimizer.step();
  }
  EXPECT_EQ(training.value(), -3);
  training.optimizer.zero_grad();
  EXPECT_FALSE(training.model->weight.grad().defined());
}

TEST(Accumulation, ClippingWaitsForTheLastMicroBatch) {
  Accelerator accelerator(over(2));
  Training training(accelerator);
  for (int i = 0; i < 2; ++i) {
    const auto micro_batch = accelerator.accumulate(training.model);
    accelerator.backward(training.model->forward(here::full({}, 8)));
    const auto norm = accelerator.clip_grad_norm_(training.model->parameters(), 2);
    EXPECT_FLOAT_EQ(norm.item<float>(), i == 0 ? 0 : 8);
    if (i == 0) accelerator.clip_grad_value_(training.model->parameters(), 1);
    training.optimizer.step();
  }
  EXPECT_NEAR(training.value(), -2, 1e-5);
}

// The step may come after the scope.
TEST(Accumulation, HoldsUntilTheNextMicroBatch) {
  Accelerator accelerator(over(2));
  Training training(accelerator);
  for (const auto expected : {kAccumulating, kStepped}) {
    {
      const auto micro_batch = accelerator.accumulate(training.model);
      accelerator.backward(training.model->forward(here::ones({})));
    }
    training.optimizer.step();
    EXPECT_EQ(training.optimizer.outcome(), expected);
  }
  EXPECT_EQ(training.value(), -1);
}

TEST(Accumulation, ItsNumberOfStepsMayChange) {
  Accelerator accelerator(over(1));
  Training training(accelerator);
  EXPECT_EQ(training.run(1), kStepped);
  accelerator.set_gradient_accumulation_steps(2);
  EXPECT_EQ(accelerator.gradient_accumulation_steps(), 2);
  EXPECT_EQ(training.run(1), kAccumulating);
  accelerator.set_gradient_accumulation_steps(3);  // from the next group on
  EXPECT_EQ(training.run(1), kStepped);
  EXPECT_EQ(training.value(), -2);
  EXPECT_EQ(training.run(1), kAccumulating);
  EXPECT_EQ(training.run(1), kAccumulating);
  EXPECT_EQ(training.run(1), kStepped);
}

TEST(Accumulation, AFlushCompletesAGroup) {
  Accelerator accelerator(over(4));
  Training training(accelerator);
  training.run(1);
  training.run(3);
  accelerator.flush(training.model);
  training.optimizer.step();
  EXPECT_EQ(training.optimizer.outcome(), kStepped);
  EXPECT_EQ(training.value(), -2);
  training.optimizer.zero_grad();
  accelerator.flush(training.model);  // nothing is under way
  EXPECT_EQ(training.run(1), kAccumulating);
}

TEST(Accumulation, RefusesWhatItCannotCount) {
  EXPECT_ERROR(Accelerator(over(0)), std::invalid_argument,
               "gradient accumulation over 0 micro-batches; allowed: 1 or more");
  Accelerator accelerator(over(2));
  Training training(accelerator), other(accelerator);
  EXPECT_ERROR(accelerator.set_gradient_accumulation_steps(-1), std::invalid_argument,
               "gradient accumulation over -1 micro-batches");
  EXPECT_ERROR((void)accelerator.accumulate(), std::invalid_argument,
               "accumulate() without a model; allowed: one or more prepared models");
  const auto loss = [&] { return training.model->forward(here::ones({})); };
  EXPECT_ERROR(accelerator.backward(loss(), 3), std::invalid_argument,
               "outside of accumulate() with 2 prepared models; allowed: one, or within");
  const auto micro_batch = accelerator.accumulate(training.model);
  accelerator.backward(loss());
  EXPECT_ERROR(accelerator.backward(loss(), 3), std::invalid_argument,
               "in a group of micro-batches that began with backward(loss)");
  EXPECT_ERROR(accelerator.backward(loss(), -1), std::invalid_argument, "a sum over -1 samples");
  const auto another = accelerator.accumulate(other.model);
  accelerator.backward(other.model->forward(here::ones({})), 2);
  EXPECT_ERROR(accelerator.backward(other.model->forward(here::ones({}))), std::invalid_argument,
               "in a group of micro-batches that began with backward(loss_sum, count)");
}

// Micro-batches of 1 and 3 tokens whose losses are 4 and 0: the mean is 1, that of means is 2.
TEST(Accumulation, SumsAreWeighedByTheirCounts) {
  Accelerator accelerator(over(2));
  Training training(accelerator);
  for (const auto& [sum, count] : {std::pair{4.0, 1}, {0.0, 3}}) {
    const auto micro_batch = accelerator.accumulate(training.model);
    accelerator.backward(training.model->forward(here::full({}, sum)), count);
    training.optimizer.step();
  }
  EXPECT_EQ(training.value(), -1);
}

TEST(Accumulation, SumsAreExactOverUnequalRanks) {
  for (const int size : {1, 2, 3})
    run_ranks(size, [size](const World& world) {
      Accelerator accelerator(over(2, world));
      Training training(accelerator);
      double sum = 0, count = 0;
      for (int r = 0; r < size; ++r)
        for (int i = 0; i < 2; ++i) sum += 10 * r + i, count += r + 2 * i;
      for (int i = 0; i < 2; ++i) {
        const auto micro_batch = accelerator.accumulate(training.model);
        const auto mine = here::full({}, 10 * world.rank() + i);
        accelerator.backward(training.model->forward(mine), world.rank() + 2 * i);
        training.optimizer.step();
      }
      EXPECT_NEAR(training.value(), -sum / count, 1e-5);
      training.optimizer.zero_grad();
      // Outside of accumulate(), with the only model.
      accelerator.backward(training.model->forward(here::ones({})), world.rank() + 1);
      EXPECT_NEAR(training.model->weight.grad().item<float>(), 2.0 / (size + 1), 1e-6);
    });
}

// Gradients are reduced with the last micro-batch alone, or with each, and are the same.
TEST(Accumulation, CommunicatesOnceAGroupUnlessAskedTo) {
  for (const bool each : {false, true})
    run_ranks(2, [each](const World& world) {
      Accelerator accelerator(
          {.world = world, .gradient_accumulation = {.steps = 3, .sync_each_batch = each}});
      Training training(accelerator);
      for (int i = 0; i < 6; ++i) training.run(world.rank() == 0 ? 1 : 3);
      EXPECT_FLOAT_EQ(training.value(), -4);
      EXPECT_EQ(training.model->scope().sync()->num_reductions(), each ? 6 : 2);
    });
}

TEST(Accumulation, AFlushAveragesOverTheRanks) {
  run_ranks(3, [](const World& world) {
    Accelerator accelerator(over(4, world));
    Training training(accelerator);
    training.run(world.rank());
    training.run(world.rank() + 3);
    accelerator.flush(training.model);
    training.optimizer.step();
    EXPECT_FLOAT_EQ(training.value(), -2.5);
  });
}

}  // namespace
}  // namespace drivetrain
