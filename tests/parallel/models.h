// SPDX-License-Identifier: Apache-2.0
// Models, and what tests do with them on threads as ranks.
#pragma once

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "parallel/gradient_sync.h"
#include "ranks.h"

namespace drivetrain::parallel {

inline NamedTensors named_parameters(const torch::nn::Module& model) {
  NamedTensors named;
  for (const auto& item : model.named_parameters()) named.emplace_back(item.key(), item.value());
  return named;
}

inline NamedTensors named_buffers(const torch::nn::Module& model) {
  NamedTensors named;
  for (const auto& item : model.named_buffers()) named.emplace_back(item.key(), item.value());
  return named;
}

inline std::mutex generator_mutex;

// make() with the seed set; one thread at a time, as all share one generator.
template <class Make>
auto seeded(uint64_t seed, Make make) {
  const std::lock_guard lock(generator_mutex);
  torch::manual_seed(seed);
  return make();
}

// A model that is synchronised; forward and backward as the training room calls them.
template <class Model>
struct Synced {
  Synced(const World& world, Model made, const DistributedDataParallelOptions& options = {})
      : model(here::moved(std::move(made))),
        sync(world, named_parameters(*model), named_buffers(*model), options) {}

  at::Tensor forward(const at::Tensor& x) {
    sync.before_forward(model->is_training());
    return model->forward(x);
  }

  Model model;
  GradientSync sync;
};

inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.detach().clone());
  return out;
}

inline std::vector<at::Tensor> gradients(const torch::nn::Module& model) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& parameter : model.parameters())
    out.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return out;
}

// Bit for bit, wherever they are.
inline void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (!a[i].defined()) continue;
    EXPECT_TRUE(a[i].cpu().equal(b[i].cpu())) << i << "\n" << a[i] << "\n" << b[i];
  }
}

inline void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                         double rtol = 1e-6, double atol = 1e-6) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (!a[i].defined()) continue;
    EXPECT_TRUE(at::allclose(a[i].cpu(), b[i].cpu(), rtol, atol))
        << i << ": " << (a[i].cpu() - b[i].cpu()).abs().max().item<double>();
  }
}

// Runs body(world) on each rank and returns what each gave.
template <class Body>
auto on_ranks(int num_ranks, Body body) {
  std::vector<std::invoke_result_t<Body, World>> results(num_ranks);
  run_ranks(num_ranks, [&](World world) { results[world.rank()] = body(world); });
  return results;
}

constexpr int kWorlds[] = {1, 2, 3, 4, 7};

}  // namespace drivetrain::parallel
