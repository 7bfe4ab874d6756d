// SPDX-License-Identifier: Apache-2.0
#include "hardware/optimizer_state.h"

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

using Visit = std::function<void(at::Tensor&)>;

void visit_known(torch::optim::AdagradParamState& state, const Visit& visit) { visit(state.sum()); }

void visit_known(torch::optim::SGDParamState& state, const Visit& visit) {
  visit(state.momentum_buffer());
}

template <class Moments>  // AdamParamState, AdamWParamState
void visit_known(Moments& state, const Visit& visit) {
  visit(state.exp_avg());
  visit(state.exp_avg_sq());
  visit(state.max_exp_avg_sq());
}

void visit_known(torch::optim::RMSpropParamState& state, const Visit& visit) {
  visit(state.square_avg());
  visit(state.momentum_buffer());
  visit(state.grad_avg());
}

void visit_known(torch::optim::LBFGSParamState& state, const Visit& visit) {
  visit(state.d());
  visit(state.H_diag());
  visit(state.prev_flat_grad());
  for (auto* list : {&state.old_dirs(), &state.old_stps(), &state.ro()})
    for (at::Tensor& tensor : *list) visit(tensor);
  if (state.al())
    for (at::Tensor& tensor : *state.al()) visit(tensor);
}

template <class State>
bool visit_if(torch::optim::OptimizerParamState& state, const Visit& visit) {
  auto* known = dynamic_cast<State*>(&state);
  if (known != nullptr) visit_known(*known, visit);
  return known != nullptr;
}

}  // namespace

bool visit_state(torch::optim::OptimizerParamState& state, const Visit& visit) {
  return visit_if<torch::optim::AdamWParamState>(state, visit) ||
         visit_if<torch::optim::AdamParamState>(state, visit) ||
         visit_if<torch::optim::SGDParamState>(state, visit) ||
         visit_if<torch::optim::AdagradParamState>(state, visit) ||
         visit_if<torch::optim::RMSpropParamState>(state, visit) ||
         visit_if<torch::optim::LBFGSParamState>(state, visit);
}

std::string visit_optimizer_state(const torch::optim::Optimizer& optimizer,
                                  const std::function<void(const at::Tensor&)>& visit) {
  std::string unknown;
  for (const auto& [parameter, state] : optimizer.state()) {
    auto& any = *state;
    if (!visit_state(any, visit)) unknown = c10::demangle(typeid(any).name());
  }
  return unknown;
}

}  // namespace drivetrain::hardware
