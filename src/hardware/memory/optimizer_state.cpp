// SPDX-License-Identifier: Apache-2.0
#include "hardware/memory/optimizer_state.h"

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

namespace drivetrain::hardware {
namespace {

using Visit = std::function<void(const at::Tensor&)>;

void visit_state(const torch::optim::AdagradParamState& state, const Visit& visit) {
  visit(state.sum());
}

void visit_state(const torch::optim::SGDParamState& state, const Visit& visit) {
  visit(state.momentum_buffer());
}

template <class Moments>  // AdamParamState, AdamWParamState
void visit_state(const Moments& state, const Visit& visit) {
  visit(state.exp_avg());
  visit(state.exp_avg_sq());
  visit(state.max_exp_avg_sq());
}

void visit_state(const torch::optim::RMSpropParamState& state, const Visit& visit) {
  visit(state.square_avg());
  visit(state.momentum_buffer());
  visit(state.grad_avg());
}

void visit_state(const torch::optim::LBFGSParamState& state, const Visit& visit) {
  visit(state.d());
  visit(state.H_diag());
  visit(state.prev_flat_grad());
  for (const auto* list : {&state.old_dirs(), &state.old_stps(), &state.ro()})
    for (const at::Tensor& tensor : *list) visit(tensor);
  if (state.al())
    for (const at::Tensor& tensor : *state.al()) visit(tensor);
}

template <class State>
bool visit_if(const torch::optim::OptimizerParamState& state, const Visit& visit) {
  const auto* known = dynamic_cast<const State*>(&state);
  if (known != nullptr) visit_state(*known, visit);
  return known != nullptr;
}

}  // namespace

std::string visit_optimizer_state(const torch::optim::Optimizer& optimizer, const Visit& visit) {
  std::string unknown;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& any = *state;
    const bool known = visit_if<torch::optim::AdamWParamState>(any, visit) ||
                       visit_if<torch::optim::AdamParamState>(any, visit) ||
                       visit_if<torch::optim::SGDParamState>(any, visit) ||
                       visit_if<torch::optim::AdagradParamState>(any, visit) ||
                       visit_if<torch::optim::RMSpropParamState>(any, visit) ||
                       visit_if<torch::optim::LBFGSParamState>(any, visit);
    if (!known) unknown = c10::demangle(typeid(any).name());
  }
  return unknown;
}

}  // namespace drivetrain::hardware
