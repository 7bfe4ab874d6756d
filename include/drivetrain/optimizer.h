// SPDX-License-Identifier: Apache-2.0
// The stand-in for an optimizer: the user's own class, whose step runs fused kernels.
#pragma once

#include <ATen/core/grad_mode.h>
#include <drivetrain/precision.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::optim {
class Adagrad;
class Adam;
class AdamW;
class SGD;
}  // namespace torch::optim

namespace drivetrain {

namespace detail {

// Updates every parameter that has a gradient by one fused kernel call a group, with the same
// state as O::step. False, with nothing changed, where the kernels cannot serve: sparse or complex
// gradients, parameters that overlap or have gaps, a state that O::step would refuse.
bool fused_step(torch::optim::Adagrad& optimizer);
bool fused_step(torch::optim::Adam& optimizer);
bool fused_step(torch::optim::AdamW& optimizer);
bool fused_step(torch::optim::SGD& optimizer);

// A class derived from one of these may have a step of its own: only the exact class is fused.
template <class O>
inline constexpr bool kHasFusedStep =
    std::is_same_v<O, torch::optim::Adagrad> || std::is_same_v<O, torch::optim::Adam> ||
    std::is_same_v<O, torch::optim::AdamW> || std::is_same_v<O, torch::optim::SGD>;

// Leaves each parameter once: C++ Module::parameters() lists a tied one twice, and a step would
// move it twice.
void drop_repeated_parameters(std::vector<torch::optim::OptimizerParamGroup>& groups);

// Moves the state of each parameter, as LibTorch's classes gather it, to the parameter's device.
void move_state(torch::optim::Optimizer& optimizer);

// Optimizer::zero_grad without its detach_(), which throws for a gradient that is a view.
void zero_grad(std::vector<torch::optim::OptimizerParamGroup>& groups, bool set_to_none);

// What the Accelerator that prepared an optimizer says of its steps.
class StepGate {
 public:
  virtual ~StepGate() = default;
  // Whether a step may update the parameters now: if so, it is `stepped`.
  virtual StepOutcome ask(torch::optim::Optimizer& optimizer, bool has_closure) = 0;
  // step(), with what it needs around it.
  virtual at::Tensor run(torch::optim::Optimizer& optimizer,
                         const std::function<at::Tensor()>& step) = 0;
  // Whether gradients are of micro-batches whose step is still to come.
  virtual bool keeps_gradients(torch::optim::Optimizer& optimizer) = 0;
};

}  // namespace detail

template <class O>
concept OptimizerType = std::derived_from<O, torch::optim::Optimizer>;

// What Accelerator::prepare(optimizer) returns. It is an O, so schedulers, torch::save and the
// options of its groups (`param_groups()[i].options()`, honoured group by group) work as before.
//
// Adam, AdamW, SGD and Adagrad step through fused kernels (Drivetrain's own for Adam and AdamW on
// float32 in host memory, at::_fused_*_ elsewhere), equal to the class within 1e-6 relative; every
// other class through its own step. Parameters without a gradient are left untouched, weight decay
// included.
//
// State that was gathered on another device (before the model moved, or in a file) is moved to that
// of its parameter; of a class with a state of its own, that state is the class's to move.
//
// LibTorch (2.9 to 2.13 at least) guesses which options of a group were set by comparing them with
// the class's defaults; to give a group just such a value, set it after construction:
// `optimizer.param_groups()[1].options().set_lr(1e-3)`.
template <OptimizerType O>
class PreparedOptimizer : public O {
 public:
  explicit PreparedOptimizer(O&& optimizer, std::unique_ptr<detail::StepGate> gate = nullptr)
      : O(std::move(optimizer)), gate_(std::move(gate)) {
    detail::drop_repeated_parameters(this->param_groups());
    detail::move_state(*this);
  }
  PreparedOptimizer(PreparedOptimizer&& other) noexcept
      : O(std::move(other)),
        gate_(std::move(other.gate_)),
        outcome_(std::move(other.outcome_)),
        place_(std::move(other.place_)) {
    if (place_) *place_ = this;
  }
  PreparedOptimizer& operator=(PreparedOptimizer&& other) noexcept {
    O::operator=(std::move(other));
    gate_ = std::move(other.gate_);
    outcome_ = std::move(other.outcome_);
    place_ = std::move(other.place_);
    if (place_) *place_ = this;
    return *this;
  }
  ~PreparedOptimizer() override = default;

  // One update of all parameters; returns the closure's loss, or an undefined tensor. Nothing,
  // and the closure is not called, where outcome() then says so: more micro-batches follow, or a
  // gradient was not finite.
  at::Tensor step(typename O::LossClosure closure = nullptr) override {
    *outcome_ = gate_ ? gate_->ask(*this, closure != nullptr) : StepOutcome::stepped;
    if (*outcome_ != StepOutcome::stepped) return {};
    const auto update = [&]() -> at::Tensor {
      if constexpr (detail::kHasFusedStep<O>) {
        at::Tensor loss;
        if (closure) {
          at::AutoGradMode with_grad(true);
          loss = closure();
        }
        if (!detail::fused_step(static_cast<O&>(*this))) O::step();
        return loss;
      } else {
        return O::step(closure);
      }
    };
    return gate_ ? gate_->run(*this, update) : update();
  }

  // What the last step() has done; before the first one: accumulating.
  StepOutcome outcome() const noexcept { return *outcome_; }
  std::weak_ptr<const StepOutcome> shared_outcome() const noexcept { return outcome_; }

  // Drops every gradient, or fills it with zeros; nothing while micro-batches whose step is still
  // to come have added to them, so it may stand anywhere in the loop. Safe on gradients that are
  // views of a chunk.
  void zero_grad(bool set_to_none = true) {
    if (gate_ && gate_->keeps_gradients(*this)) return;
    detail::zero_grad(this->param_groups(), set_to_none);
  }

  // What torch::load calls.
  void load(torch::serialize::InputArchive& archive) override {
    O::load(archive);
    detail::move_state(*this);
  }

  // Where this object is, wherever it is moved to; expires with it.
  std::weak_ptr<torch::optim::Optimizer*> place() const noexcept { return place_; }

 private:
  std::unique_ptr<detail::StepGate> gate_;
  // Null in what was moved from.
  std::shared_ptr<StepOutcome> outcome_ = std::make_shared<StepOutcome>(StepOutcome::accumulating);
  std::shared_ptr<torch::optim::Optimizer*> place_ =
      std::make_shared<torch::optim::Optimizer*>(this);
};

// Where a schedule finds its optimizer.
class OptimizerRef {
 public:
  // Requires: `optimizer` stays where it is, and outlives the schedule.
  OptimizerRef(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {}  // NOLINT: implicit
  // A prepared one may be moved.
  template <OptimizerType O>
  OptimizerRef(PreparedOptimizer<O>& optimizer)  // NOLINT: implicit
      : place_(optimizer.place()), outcome_(optimizer.shared_outcome()) {}

  // Throws std::invalid_argument if the prepared optimizer is gone.
  torch::optim::Optimizer& get() const;

  // What the last step of a prepared optimizer has done.
  std::optional<StepOutcome> outcome() const {
    const auto outcome = outcome_.lock();
    return outcome ? std::optional(*outcome) : std::nullopt;
  }

 private:
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::weak_ptr<torch::optim::Optimizer*> place_;
  std::weak_ptr<const StepOutcome> outcome_;
};

}  // namespace drivetrain
