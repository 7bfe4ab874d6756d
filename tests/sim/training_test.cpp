// SPDX-License-Identifier: Apache-2.0
// Training on a simulated device takes the CPU's steps, bit for bit.
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "devices.h"

namespace drivetrain::sim {
namespace {

using at::Tensor;
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor> parameters)>;

torch::nn::Sequential net() {
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)), torch::nn::BatchNorm2d(4),
      torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(), torch::nn::Linear(36, 5),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
}

// The parameters after some steps.
std::vector<Tensor> train(c10::Device device, const MakeOptimizer& make) {
  torch::manual_seed(0);
  auto model = net();
  move_module_(*model, device);
  auto optimizer = make(model->parameters());
  for (int step = 0; step < 4; ++step) {
    const auto x = torch::randn({5, 1, 6, 6}).to(device), y = torch::randint(5, {5}).to(device);
    optimizer->zero_grad();
    torch::nn::functional::cross_entropy(model->forward(x), y).backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer->step();
  }
  std::vector<Tensor> trained;
  for (const Tensor& each : model->parameters()) trained.push_back(each.detach().cpu());
  for (const Tensor& each : model->buffers()) trained.push_back(each.detach().cpu());
  return trained;
}

void expect_equal_to_cpu(const char* name, const MakeOptimizer& make) {
  SCOPED_TRACE(name);
  const auto there = train(at(0), make), here = train(c10::kCPU, make);
  ASSERT_EQ(there.size(), here.size());
  for (size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(torch::equal(there[i], here[i])) << i;
}

TEST(SimTraining, IsTheCpusBitForBitWithEveryOptimizer) {
  using namespace torch::optim;
  expect_equal_to_cpu("SGD", [](const auto& p) {
    return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9).nesterov(true));
  });
  expect_equal_to_cpu("Adam",
                      [](const auto& p) { return std::make_unique<Adam>(p, AdamOptions(0.01)); });
  expect_equal_to_cpu("AdamW", [](const auto& p) {
    return std::make_unique<AdamW>(p, AdamWOptions(0.01).amsgrad(true));
  });
  expect_equal_to_cpu("RMSprop", [](const auto& p) {
    return std::make_unique<RMSprop>(p, RMSpropOptions(0.01).centered(true));
  });
  expect_equal_to_cpu("Adagrad", [](const auto& p) { return std::make_unique<Adagrad>(p, 0.01); });
}

TEST(SimTraining, FusedStepsAreTheCpus) {
  const auto step = [](c10::Device device) {
    torch::manual_seed(1);
    std::vector<Tensor> p, g, m, v, steps;
    for (const int64_t size : {1, 7, 64}) {
      p.push_back(torch::randn({size}).to(device));
      g.push_back(torch::randn({size}).to(device));
      m.push_back(torch::zeros({size}, device));
      v.push_back(torch::zeros({size}, device));
      steps.push_back(torch::ones({}, device));
    }
    if (device.type() != c10::kCPU) sleep(60);
    const double time = milliseconds([&] {
      at::_fused_adamw_(p, g, m, v, {}, steps, 0.01, 0.9, 0.999, 0.1, 1e-8, false, false);
      at::_fused_sgd_(p, g, m, 0.0, 0.9, 0.01, 0.0, false, false, false);
    });
    EXPECT_LT(time, 50) << "lists are written to later, too";
    for (Tensor& each : p) each = each.cpu();
    return p;
  };
  const auto there = step(at(0)), here = step(c10::kCPU);
  for (size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(torch::equal(there[i], here[i]));
}

// LibTorch's engine has a thread for each device: none of them is the caller's.
class WhereBackwardRuns : public torch::autograd::Function<WhereBackwardRuns> {
 public:
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    const std::lock_guard<std::mutex> lock(mutex);
    threads.emplace(std::this_thread::get_id());
    devices.insert(accelerator()->current_device());
    return grads;
  }
  static inline std::mutex mutex;
  static inline std::set<std::thread::id> threads;
  static inline std::set<int> devices;
};

TEST(SimTraining, BackwardRunsOnTheThreadOfTheDevice) {
  auto x = torch::ones({3}, torch::device(at(2)).requires_grad(true));
  auto y = torch::ones({3}, torch::device(at(1)).requires_grad(true));
  (WhereBackwardRuns::apply(x).sum().cpu() + WhereBackwardRuns::apply(y).sum().cpu()).backward();
  EXPECT_EQ(WhereBackwardRuns::threads.size(), 2u);
  EXPECT_FALSE(WhereBackwardRuns::threads.contains(std::this_thread::get_id()));
  EXPECT_EQ(WhereBackwardRuns::devices, (std::set<int>{1, 2}));
  EXPECT_TRUE(torch::equal(x.grad().cpu(), torch::ones({3})));
  EXPECT_EQ(y.grad().device(), at(1));
}

TEST(SimTraining, AModelMaySpanDevices) {
  torch::manual_seed(4);
  torch::nn::Linear first(4, 8), second(8, 2);
  const auto x = torch::randn({3, 4});
  const auto loss = [&](c10::Device a, c10::Device b) {
    return second->forward(torch::relu(first->forward(x.to(a))).to(b)).pow(2).sum();
  };
  loss(c10::kCPU, c10::kCPU).backward();
  const auto want = first->weight.grad().clone();
  first->zero_grad();
  second->zero_grad();
  move_module_(*first, at(0));
  move_module_(*second, at(1));
  loss(at(0), at(1)).backward();
  EXPECT_TRUE(torch::equal(first->weight.grad().cpu(), want));
  EXPECT_EQ(second->weight.grad().device(), at(1));
}

TEST(SimTraining, OnASideStreamIsTheSame) {
  const auto make = [](const auto& p) { return std::make_unique<torch::optim::SGD>(p, 0.1); };
  const auto want = train(c10::kCPU, make);
  const auto guard = accelerator()->stream(accelerator()->Stream());
  const auto got = train(at(0), make);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i]));
}

TEST(SimTraining, RecoversFromRunningOutOfMemory) {
  accelerator()->set_device(0);
  accelerator()->empty_cache();
  int64_t rows = 4096;
  torch::nn::Linear layer(512, 512);
  accelerator()->set_to_device(*layer);
  while (true) try {
      layer->forward(torch::ones({rows, 512}, torch::device(at(0)))).pow(2).sum().backward();
      break;
    } catch (const c10::OutOfMemoryError&) {
      rows /= 2;
    }
  EXPECT_LT(rows, 16384);
  EXPECT_GT(rows, 64);
  EXPECT_TRUE(layer->weight.grad().cpu().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace drivetrain::sim
