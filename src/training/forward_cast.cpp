// SPDX-License-Identifier: Apache-2.0
#include "training/forward_cast.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/ivalue_inl.h>

#include <vector>

#include "parallel/gradient_sync.h"
#include "training/model_state.h"

namespace drivetrain {

namespace training {

std::optional<detail::ForwardCast> cast_for(MixedPrecision precision, c10::DeviceType device,
                                            bool float32_outputs) {
  if (precision == MixedPrecision::no) return std::nullopt;
  return detail::ForwardCast{.device = device,
                             .dtype = precision == MixedPrecision::fp16 ? at::kHalf : at::kBFloat16,
                             .float32_outputs = float32_outputs};
}

}  // namespace training

namespace detail {

std::shared_ptr<parallel::GradientSync> ForwardScope::sync() const { return model_->sync; }

void ForwardScope::before(bool is_training) const {
  if (model_->sync) model_->sync->before_forward(is_training);
}

at::Tensor ForwardScope::to_float32(const at::Tensor& tensor) const {
  const bool is_reduced = tensor.defined() && (tensor.scalar_type() == at::kHalf ||
                                               tensor.scalar_type() == at::kBFloat16);
  return is_reduced && cast_->float32_outputs ? tensor.to(at::kFloat) : tensor;
}

// Tensors by themselves, and in the tuples, lists and dictionaries that scripted modules return.
c10::IValue ForwardScope::to_float32(const c10::IValue& value) const {
  if (value.isTensor()) return to_float32(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(to_float32(tensor));
    return list;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> parts;
    for (const c10::IValue& part : value.toTupleRef().elements()) parts.push_back(to_float32(part));
    return c10::ivalue::Tuple::create(std::move(parts));
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    auto converted = c10::impl::GenericDict(dict.keyType(), dict.valueType());
    for (const auto& entry : dict) converted.insert(entry.key(), to_float32(entry.value()));
    return converted;
  }
  return value;
}

}  // namespace detail

}  // namespace drivetrain
