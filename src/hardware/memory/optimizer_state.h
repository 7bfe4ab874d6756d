// SPDX-License-Identifier: Apache-2.0
// The tensors in an optimizer's state, without knowing its class.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace drivetrain::hardware {

// Calls `visit` for every tensor, undefined ones included, in the states of LibTorch's classes and
// what derives from them. "" or the name of a class of state that is none of those.
std::string visit_optimizer_state(const torch::optim::Optimizer& optimizer,
                                  const std::function<void(const at::Tensor&)>& visit);

}  // namespace drivetrain::hardware
