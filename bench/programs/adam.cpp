// SPDX-License-Identifier: Apache-2.0
// One AdamW step over float32 parameters: our kernel, torch::optim::AdamW, at::_fused_adamw_, and a
// copy that moves as many bytes as a step must.
//
// usage: bench_adam 25m|small
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <drivetrain/backends.h>
#include <torch/torch.h>

#include <cstring>
#include <thread>

#include "blocks.h"
#include "mlp.h"

namespace {

using namespace drivetrain::kernels;
using Tensors = std::vector<at::Tensor>;

constexpr double kLr = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kDecay = 0.01;

// Weights and biases of layers of one width.
Tensors layers(int64_t count, int64_t width) {
  torch::manual_seed(0);
  Tensors all;
  for (int64_t i = 0; i < count; ++i) {
    all.push_back(torch::randn({width, width}));
    all.push_back(torch::randn({width}));
  }
  return all;
}

Tensors like(const Tensors& tensors, double value) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(torch::full_like(tensor, value));
  return all;
}

// A step reads parameter, gradient and two moments, and writes all but the gradient.
int64_t bytes_moved(const Tensors& parameters) {
  int64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.numel();
  return 7 * 4 * elements;
}

// Half of `bytes` read and half written, on as many threads as the others have.
std::function<void()> copy_of(int64_t bytes) {
  const int64_t threads = at::get_num_threads(), share = bytes / 2 / threads;
  const auto from = torch::ones({threads, share}, at::kByte), to = torch::zeros_like(from);
  const auto copy_share = [=](int64_t i) {
    std::memcpy(static_cast<char*>(to.data_ptr()) + i * share,
                static_cast<const char*>(from.data_ptr()) + i * share, share);
  };
  return [=] {
    std::vector<std::thread> others;
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(copy_share, i);
    copy_share(0);
    for (auto& other : others) other.join();
  };
}

struct Fused {
  Tensors parameters, grads = like(parameters, 0.01);
  Tensors exp_avgs = like(parameters, 0), exp_avg_sqs = like(parameters, 0);
  int64_t age = 0;
};

std::function<void()> our_step(Fused& f) {
  return [&f] {
    const std::vector<int64_t> steps(f.parameters.size(), ++f.age);
    const auto kernel = kernel_registry().load<AdamKernel>("adam", "cpu");
    kernel({f.parameters, f.grads, f.exp_avgs, f.exp_avg_sqs, {}, {}, steps},
           {kLr, kBeta1, kBeta2, kEps, kDecay});
  };
}

std::function<void()> aten_step(Fused& f) {
  return [&f] {
    const Tensors steps(f.parameters.size(), torch::full({}, static_cast<double>(++f.age)));
    at::_fused_adamw_(f.parameters, f.grads, f.exp_avgs, f.exp_avg_sqs, {}, steps, kLr, kBeta1,
                      kBeta2, kDecay, kEps, /*amsgrad=*/false, /*maximize=*/false);
  };
}

}  // namespace

int main(int argc, char** argv) {
  torch::NoGradGuard no_grad;
  const bool is_small = argc > 1 && std::string(argv[1]) == "small";
  const auto make = [&] { return is_small ? layers(10, 64) : layers(6, 2048); };

  Fused ours{make()}, aten{make()};
  Tensors theirs = make();
  for (auto& parameter : theirs) {
    parameter.requires_grad_(true);
    parameter.mutable_grad() = torch::full_like(parameter, 0.01);
  }
  torch::optim::AdamW optimizer(theirs, torch::optim::AdamWOptions(kLr).weight_decay(kDecay));

  std::vector<bench::Side> sides = {
      {"ours", our_step(ours)}, {"class", [&] { optimizer.step(); }}, {"aten", aten_step(aten)}};
  for (int i = 0; i < 3; ++i)
    for (auto& side : sides) side.step();
  bench::expect_equal(ours.parameters, theirs);
  bench::expect_equal(aten.parameters, theirs);
  if (!is_small) sides.push_back({"copy", copy_of(bytes_moved(theirs))});
  bench::time_by_turns(sides, is_small ? bench::Plan{.warmups = 50, .blocks = 20, .steps = 50}
                                       : bench::Plan{.warmups = 1, .blocks = 7, .steps = 3});
  bench::report(sides);
}
