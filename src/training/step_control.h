// SPDX-License-Identifier: Apache-2.0
// What an Accelerator shares with the optimizers that it prepared: the models, the groups of
// micro-batches, the loss scale; and with them, what a backward and a step are.
#pragma once

#include <drivetrain/accelerator.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training/accumulation.h"
#include "training/model_state.h"

namespace drivetrain::training {

class StepControl {
 public:
  // `scaler` may be null.
  StepControl(World world, const GradientAccumulationOptions& accumulation,
              std::shared_ptr<LossScaler> scaler);

  Accumulation& accumulation() { return accumulation_; }
  LossScaler* scaler() const { return scaler_.get(); }
  const std::shared_ptr<LossScaler>& shared_scaler() const { return scaler_; }

  std::shared_ptr<ModelState> add_model(NamedTensors parameters,
                                        std::shared_ptr<parallel::GradientSync> sync,
                                        std::shared_ptr<MasterWeights> masters);
  // Those that live.
  Models models() const;
  // Changes with every model that is added.
  uint64_t version() const { return version_; }
  // "" for a parameter of no model.
  std::string name_of(const at::Tensor& parameter) const;

  // loss.backward(), for the loss over the size of its group, times the loss scale; if the
  // optimizers have stepped since the last one, the scale is set for this one first. Rescales the
  // gradients of a group that it completes. Collective.
  void backward(const at::Tensor& loss);
  // The same for the sum of losses over `count` samples, divided at the end of its group by all
  // their number.
  void backward(const at::Tensor& loss_sum, int64_t count);

  // Collective. Completes the group of `models` as it is.
  void flush(const Models& models);

  // Whether a model keeps parameters in 16 bits; if so, what to do before gradients are looked at.
  bool has_masters() const { return has_masters_; }
  void widen_gradients() const;

  // Whether any of the parameters is of a model whose group is not complete.
  bool is_accumulating(const std::vector<at::Tensor>& parameters) const;

 private:
  Accumulation::Group& group_of_loss();
  void run(const at::Tensor& loss, double factor);
  void after_backward();
  void complete(const Accumulation::Group& group, const Models& models) const;

  World world_;
  Accumulation accumulation_;
  std::shared_ptr<LossScaler> scaler_;
  std::vector<std::weak_ptr<ModelState>> models_;
  uint64_t version_ = 0;
  bool has_masters_ = false;
  // Of a backward outside of accumulate().
  Accumulation::Group outside_;
  Models models_outside_;
};

// The gate of one optimizer.
class OptimizerGate final : public detail::StepGate {
 public:
  explicit OptimizerGate(std::shared_ptr<StepControl> control) : control_(std::move(control)) {}

  StepOutcome ask(torch::optim::Optimizer& optimizer, bool has_closure) override;
  at::Tensor run(torch::optim::Optimizer& optimizer,
                 const std::function<at::Tensor()>& step) override;
  bool keeps_gradients(torch::optim::Optimizer& optimizer) override;

 private:
  struct Owner {
    std::weak_ptr<ModelState> model;
    uint64_t stepped_group = 0;  // the last group of it that this optimizer has stepped on
  };
  StepOutcome decide(torch::optim::Optimizer& optimizer, bool has_closure);
  void find_owners(torch::optim::Optimizer& optimizer);

  std::shared_ptr<StepControl> control_;
  std::vector<Owner> owners_;  // of the optimizer's parameters
  uint64_t version_ = 0;       // of the control, and
  size_t num_parameters_ = 0;  // how many there were, when they were found
};

}  // namespace drivetrain::training
