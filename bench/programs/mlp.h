// SPDX-License-Identifier: Apache-2.0
// The networks that are timed, and whether two of them are equal.
#pragma once

#include <ATen/ops/allclose.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

// Linear layers with ReLU between them, from the global seed.
inline torch::nn::Sequential mlp(const std::vector<int64_t>& widths) {
  torch::nn::Sequential model;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    if (i > 0) model->push_back(torch::nn::ReLU());
    model->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
  }
  return model;
}

// Sides that do different work must not be compared. Throws std::runtime_error.
inline void expect_equal(const std::vector<at::Tensor>& ours,
                         const std::vector<at::Tensor>& theirs) {
  for (size_t i = 0; i < ours.size(); ++i)
    if (!at::allclose(ours[i], theirs[i], 1e-4, 1e-5))
      throw std::runtime_error("bench: after the same steps, parameter " + std::to_string(i) +
                               " differs between the sides");
}

}  // namespace bench
