// SPDX-License-Identifier: Apache-2.0
// The tensors in an optimizer's state. No class of LibTorch tells what its state holds, so each is
// known here.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace torch::optim {
class Optimizer;
class OptimizerParamState;
}  // namespace torch::optim

namespace drivetrain::hardware {

// Calls `visit` for every tensor, undefined ones included, in one parameter's state, if its class
// is one of LibTorch's or derives from one; false if it is not. `visit` may replace the tensor.
bool visit_state(torch::optim::OptimizerParamState& state,
                 const std::function<void(at::Tensor&)>& visit);

// The same for the states of all parameters. "" or the name of a class of state that is not known.
std::string visit_optimizer_state(const torch::optim::Optimizer& optimizer,
                                  const std::function<void(const at::Tensor&)>& visit);

}  // namespace drivetrain::hardware
