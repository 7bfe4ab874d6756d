// SPDX-License-Identifier: Apache-2.0
#include "training/master_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>

#include <unordered_set>

#include "precision/stochastic_rounding.h"

namespace drivetrain::training {
namespace {

bool is_reduced(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type());
}

// `tensor` stays the object that it is, with the memory and type of `other`, of its shape. Not
// set_data, which would drop the hooks on its gradient when the type changes.
void point_at(const at::Tensor& tensor, const at::Tensor& other) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const bool allowed = impl->allow_tensor_metadata_change();
  impl->set_allow_tensor_metadata_change(true);
  impl->set_storage_and_dtype(other.storage(), other.dtype());
  impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  impl->set_allow_tensor_metadata_change(allowed);
}

}  // namespace

MasterWeights::MasterWeights(std::vector<precision::Master> masters,
                             const MixedPrecisionPolicy& policy)
    : is_stochastic_(policy.stochastic_rounding) {
  for (precision::Master& master : masters)
    entries_.push_back({.name = std::move(master.name),
                        .parameter = master.parameter,
                        .value = policy.master_weights ? std::move(master.value) : at::Tensor(),
                        .version = master.parameter._version()});
}

void MasterWeights::widen_gradients() const {
  const at::NoGradGuard no_grad;
  for (const Entry& entry : entries_) {
    at::Tensor& gradient = entry.parameter.mutable_grad();
    if (gradient.defined() && is_reduced(gradient)) gradient = gradient.to(at::kFloat);
  }
}

std::vector<std::pair<std::string, at::Tensor>> MasterWeights::values() const {
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (const Entry& entry : entries_)
    if (entry.value.defined()) values.emplace_back(entry.name, entry.value);
  return values;
}

void MasterWeights::take_over_parameters() {
  for (Entry& entry : entries_) entry.version = -1;
}

at::Tensor MasterWeights::value_for_step(Entry& entry) const {
  if (!entry.value.defined()) return entry.parameter.detach().to(at::kFloat);
  // Of another device if the program has moved the model.
  if (entry.value.device() != entry.parameter.device())
    entry.value = entry.value.to(entry.parameter.device());
  if (entry.version != entry.parameter._version()) entry.value.copy_(entry.parameter);
  return entry.value;
}

MasterWeights::Step::Step(MasterWeights& weights, const std::vector<at::Tensor>& parameters)
    : weights_(weights) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> wanted;
  for (const at::Tensor& parameter : parameters) wanted.insert(parameter.unsafeGetTensorImpl());
  for (size_t i = 0; i < weights.entries_.size(); ++i) {
    Entry& entry = weights.entries_[i];
    // The program may have converted the parameter back.
    if (!wanted.contains(entry.parameter.unsafeGetTensorImpl()) || !is_reduced(entry.parameter))
      continue;
    changes_.push_back(
        {i, entry.parameter, entry.parameter.detach(), weights.value_for_step(entry)});
  }
  for (const Change& change : changes_) point_at(change.parameter, change.wide);
}

MasterWeights::Step::~Step() { restore(); }

void MasterWeights::Step::restore() noexcept {
  for (const Change& change : changes_) point_at(change.parameter, change.low);
}

void MasterWeights::Step::finish() {
  restore();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> low, wide;
  for (const Change& change : changes_) {
    low.push_back(change.low);
    wide.push_back(change.wide);
  }
  if (weights_.is_stochastic_)
    precision::round_stochastically(low, wide, weights_.num_steps_++);
  else if (!low.empty())
    at::_foreach_copy_(low, wide);
  for (const Change& change : changes_)
    weights_.entries_[change.entry].version = change.parameter._version();
  changes_.clear();
}

}  // namespace drivetrain::training
