// SPDX-License-Identifier: Apache-2.0
// The bytes of every optimizer's state, and of one that nobody knows.
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/memory.h>
#include <drivetrain/optimizer.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace drivetrain {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kParameters = 11 * 3;  // one weight, no bias
constexpr int64_t kBytes = kParameters * 4;

struct OneState : torch::optim::OptimizerCloneableParamState<OneState> {
  at::Tensor average;
};

// A user's own: keeps an average of the gradients.
struct Averaging : torch::optim::Optimizer {
  explicit Averaging(const std::vector<at::Tensor>& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}

  at::Tensor step(LossClosure) override {
    for (const at::Tensor& parameter : param_groups()[0].params()) {
      auto state = std::make_unique<OneState>();
      state->average = parameter.grad().clone();
      this->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    return {};
  }
};

class OptimizerState : public ::testing::Test {
 protected:
  OptimizerState() { cpu->memory_stats(); }

  // Bytes of state after two steps.
  template <class O>
  int64_t bytes_of(O& optimizer) {
    MemoryTimeline timeline(cpu);
    timeline.track(optimizer, "tracked");
    EXPECT_EQ(timeline.step()[MemoryCategory::optimizer], 0) << "no state before the first step";
    for (int step = 0; step < 2; ++step)
      optimizer.step([&] {
        optimizer.zero_grad();
        auto loss = model->forward(torch::ones({2, 11})).pow(2).mean();
        loss.backward();
        return loss;
      });
    const int64_t bytes = timeline.step()[MemoryCategory::optimizer];
    summary = timeline.summary();
    return bytes;
  }

  std::vector<at::Tensor> parameters() const { return model->parameters(); }

  std::shared_ptr<CpuAccelerator> cpu = std::make_shared<CpuAccelerator>();
  torch::nn::Linear model{torch::nn::LinearOptions(11, 3).bias(false)};
  std::string summary;
};

TEST_F(OptimizerState, OfAdamAndAdamWIsTwoMoments) {
  torch::optim::Adam adam(parameters());
  EXPECT_EQ(bytes_of(adam), 2 * kBytes);
  torch::optim::AdamW adamw(parameters());
  EXPECT_EQ(bytes_of(adamw), 2 * kBytes);
  torch::optim::AdamW amsgrad(parameters(), torch::optim::AdamWOptions().amsgrad(true));
  EXPECT_EQ(bytes_of(amsgrad), 3 * kBytes);
  EXPECT_THAT(summary, Not(HasSubstr("not known")));
}

TEST_F(OptimizerState, OfPreparedOnesIsTheSame) {
  PreparedOptimizer adamw(torch::optim::AdamW(parameters(), 1e-3));
  EXPECT_EQ(bytes_of(adamw), 2 * kBytes);
  PreparedOptimizer sgd(
      torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  EXPECT_EQ(bytes_of(sgd), kBytes);
}

TEST_F(OptimizerState, OfSgdIsItsMomentum) {
  torch::optim::SGD plain(parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_EQ(bytes_of(plain), 0);
  torch::optim::SGD momentum(parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_EQ(bytes_of(momentum), kBytes);
}

// Adagrad has its sum from the start.
TEST_F(OptimizerState, OfAdagradIsItsSum) {
  torch::optim::Adagrad adagrad(parameters());
  MemoryTimeline timeline(cpu);
  timeline.track(adagrad);
  EXPECT_EQ(timeline.step()[MemoryCategory::optimizer], kBytes);
}

TEST_F(OptimizerState, OfRmspropDependsOnItsOptions) {
  torch::optim::RMSprop plain(parameters());
  EXPECT_EQ(bytes_of(plain), kBytes);
  torch::optim::RMSprop all(parameters(),
                            torch::optim::RMSpropOptions(1e-3).momentum(0.9).centered(true));
  EXPECT_EQ(bytes_of(all), 3 * kBytes);
}

// After two steps of one iteration: the direction, the previous gradient, and what the history
// has, against the state itself.
TEST_F(OptimizerState, OfLbfgsIsItsHistory) {
  torch::optim::LBFGS lbfgs(parameters(),
                            torch::optim::LBFGSOptions(0.01).max_iter(3).history_size(2));
  const int64_t bytes = bytes_of(lbfgs);
  const auto& state =
      static_cast<const torch::optim::LBFGSParamState&>(*lbfgs.state().begin()->second);
  ASSERT_EQ(state.old_dirs().size(), 2U) << "its history is full";
  // d, prev_flat_grad, two pairs of vectors, and single numbers: H_diag, ro and al.
  EXPECT_GE(bytes, 6 * kBytes);
  EXPECT_LE(bytes, 6 * kBytes + 20 * 8);
}

TEST_F(OptimizerState, OfAnUnknownClassIsOtherAndTheSummarySaysSo) {
  Averaging averaging(parameters());
  MemoryTimeline timeline(cpu);
  timeline.track(*model, "model");
  timeline.track(averaging, "mine");
  model->forward(torch::ones({2, 11})).mean().backward();
  EXPECT_THAT(timeline.summary(), Not(HasSubstr("not known")));
  const int64_t before = timeline.step()[MemoryCategory::other];
  averaging.step(nullptr);
  const MemoryPoint point = timeline.step();
  EXPECT_EQ(point[MemoryCategory::optimizer], 0);
  EXPECT_EQ(point[MemoryCategory::other], before + kBytes);
  EXPECT_THAT(timeline.summary(), HasSubstr("mine: state of the class "));
  EXPECT_THAT(timeline.summary(), HasSubstr("OneState is not known and counted as other"));

  timeline.track(
      MemoryCategory::optimizer,
      [&] {
        std::vector<at::Tensor> tensors;
        for (const auto& [parameter, state] : averaging.state())
          tensors.push_back(static_cast<const OneState&>(*state).average);
        return tensors;
      },
      "averages");
  EXPECT_EQ(timeline.step()[MemoryCategory::optimizer], kBytes);
}

}  // namespace
}  // namespace drivetrain
