// SPDX-License-Identifier: Apache-2.0
// A model whose halves live on two devices, trained with its gradients averaged over the ranks,
// against one process on the CPU with the whole batch.
#pragma once

#include <drivetrain/hardware.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "parallel/gradient_sync.h"

namespace drivetrain::parallel {

struct SpanningModel {
  // The same numbers on every rank, without a generator.
  SpanningModel(at::Device a, at::Device b) : first(5, 7), second(7, 3) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& p : parameters())
      p.copy_(at::linspace(-1, 1, p.numel()).reshape(p.sizes()).sin());
    move_module_(*first, a);
    move_module_(*second, b);
  }

  std::vector<at::Tensor> parameters() const {
    return {first->weight, first->bias, second->weight, second->bias};
  }
  NamedTensors named() const {
    return {{"first.weight", first->weight},
            {"first.bias", first->bias},
            {"second.weight", second->weight},
            {"second.bias", second->bias}};
  }
  at::Tensor loss(const at::Tensor& x) {
    const auto inner = at::tanh(first->forward(x.to(first->weight.device())));
    return second->forward(inner.to(second->weight.device())).pow(2).mean();
  }

  torch::nn::Linear first, second;
};

constexpr int kSpanningSteps = 4;
constexpr int64_t kSpanningRows = 4;  // a rank's

inline at::Tensor spanning_batch(int step, int num_ranks) {
  const int64_t rows = num_ranks * kSpanningRows;
  return at::linspace(0, 3, rows * 5).add(step).sin().reshape({rows, 5});
}

// This rank's share of the training; the parameters on the CPU.
inline std::vector<at::Tensor> train_spanning(const World& world, at::Device a, at::Device b) {
  SpanningModel model(a, b);
  GradientSync sync(world, model.named(), {});
  if (world.world_size() > 1 && sync.chunks().size() != 2)
    throw std::runtime_error("chunks: " + std::to_string(sync.chunks().size()));
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  for (int step = 0; step < kSpanningSteps; ++step) {
    sgd.zero_grad();
    sync.before_forward(true);
    const auto batch = spanning_batch(step, world.world_size());
    model.loss(batch.narrow(0, world.rank() * kSpanningRows, kSpanningRows)).backward();
    sgd.step();
  }
  std::vector<at::Tensor> trained;
  for (const at::Tensor& p : model.parameters()) trained.push_back(p.detach().cpu());
  return trained;
}

inline std::vector<at::Tensor> train_whole(int num_ranks) {
  SpanningModel model(c10::kCPU, c10::kCPU);
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  for (int step = 0; step < kSpanningSteps; ++step) {
    sgd.zero_grad();
    model.loss(spanning_batch(step, num_ranks)).backward();
    sgd.step();
  }
  return model.parameters();
}

}  // namespace drivetrain::parallel
