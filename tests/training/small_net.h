// SPDX-License-Identifier: Apache-2.0
// A module as users write them: a forward with a default, another method, a member, a buffer.
#pragma once

#include <torch/nn.h>

#include <vector>

namespace drivetrain {

struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(int64_t width_) : width(width_) {
    first = register_module("first", torch::nn::Linear(width, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    last = register_module("last", torch::nn::Linear(width, 1));
  }

  torch::Tensor forward(const torch::Tensor& x, bool twice = false) {
    const auto y = last->forward(torch::tanh(encode(x)));
    return twice ? y * 2 : y;
  }
  torch::Tensor encode(const torch::Tensor& x) { return first->forward(x); }

  int64_t width;
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};  // a passenger: its parameters are never used
};
TORCH_MODULE(SmallNet);

// Copies of the parameters, in order.
inline std::vector<torch::Tensor> copies_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> copies;
  for (const auto& parameter : parameters) copies.push_back(parameter.detach().clone());
  return copies;
}

}  // namespace drivetrain
