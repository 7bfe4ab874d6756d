// SPDX-License-Identifier: Apache-2.0
// The state that LibTorch's optimizers keep of a parameter lives where the parameter did at their
// first step. No class moves it, nor tells what it holds, so each is known here.
#include <drivetrain/optimizer.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace drivetrain::detail {
namespace {

using torch::optim::OptimizerParamState;

class Follow {
 public:
  explicit Follow(c10::Device device) : device_(device) {}

  void operator()(OptimizerParamState& state) const {
    using namespace torch::optim;  // NOLINT(google-build-using-namespace)
    if (auto* adam = dynamic_cast<AdamParamState*>(&state)) return moments(*adam);
    if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) return moments(*adamw);
    if (auto* sgd = dynamic_cast<SGDParamState*>(&state)) return move(sgd->momentum_buffer());
    if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) return move(adagrad->sum());
    if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) {
      move(rmsprop->square_avg());
      move(rmsprop->momentum_buffer());
      move(rmsprop->grad_avg());
    }
    if (auto* lbfgs = dynamic_cast<LBFGSParamState*>(&state)) history(*lbfgs);
  }

 private:
  void move(at::Tensor& tensor) const {
    if (tensor.defined()) tensor = tensor.to(device_);
  }

  template <class State>
  void moments(State& state) const {
    move(state.exp_avg());
    move(state.exp_avg_sq());
    move(state.max_exp_avg_sq());
  }

  void history(torch::optim::LBFGSParamState& state) const {
    for (at::Tensor* tensor : {&state.d(), &state.H_diag(), &state.prev_flat_grad()}) move(*tensor);
    for (auto* list : {&state.old_dirs(), &state.old_stps(), &state.ro()})
      for (at::Tensor& tensor : *list) move(tensor);
    if (state.al())
      for (at::Tensor& tensor : *state.al()) move(tensor);
  }

  c10::Device device_;
};

}  // namespace

void move_state(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  auto& states = optimizer.state();
  if (states.empty()) return;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      if (found != states.end() && found->second) Follow(parameter.device())(*found->second);
    }
}

}  // namespace drivetrain::detail
