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

namespace {

// `value` with each tensor t replaced by fn(t): by itself, and in the tuples, lists and
// dictionaries that scripted modules take and return.
template <class Fn>
c10::IValue map_ivalue(const c10::IValue& value, const Fn& fn) {
  if (value.isTensor()) return fn(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(fn(tensor));
    return list;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> parts;
    for (const c10::IValue& part : value.toTupleRef().elements())
      parts.push_back(map_ivalue(part, fn));
    return c10::ivalue::Tuple::create(std::move(parts));
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    auto converted = c10::impl::GenericDict(dict.keyType(), dict.valueType());
    for (const auto& entry : dict) converted.insert(entry.key(), map_ivalue(entry.value(), fn));
    return converted;
  }
  return value;
}

}  // namespace

namespace training {

std::optional<detail::ForwardCast> cast_for(MixedPrecision precision,
                                            const MixedPrecisionPolicy& policy,
                                            c10::DeviceType device, bool float32_outputs) {
  const bool converts = policy.param_dtype || policy.output_dtype;
  if (precision == MixedPrecision::no && !converts) return std::nullopt;
  detail::ForwardCast cast{.device = device,
                           .inputs = policy.param_dtype,
                           .outputs = policy.output_dtype,
                           .float32_outputs = float32_outputs};
  if (precision != MixedPrecision::no)
    cast.autocast = precision == MixedPrecision::fp16 ? at::kHalf : at::kBFloat16;
  return cast;
}

}  // namespace training

namespace detail {

std::shared_ptr<parallel::GradientSync> ForwardScope::sync() const { return model_->sync; }

void ForwardScope::before(bool is_training) const {
  if (model_->sync) model_->sync->before_forward(is_training);
}

at::Tensor ForwardScope::input_tensor(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(*cast_->inputs) : tensor;
}

at::Tensor ForwardScope::output(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_floating_point()) return tensor;
  if (cast_->outputs) return tensor.to(*cast_->outputs);
  const bool is_reduced = at::isReducedFloatingType(tensor.scalar_type());
  return is_reduced && cast_->float32_outputs ? tensor.to(at::kFloat) : tensor;
}

c10::IValue ForwardScope::input(const c10::IValue& value) const {
  return map_ivalue(value, [this](const at::Tensor& tensor) { return input_tensor(tensor); });
}

c10::IValue ForwardScope::output(const c10::IValue& value) const {
  return map_ivalue(value, [this](const at::Tensor& tensor) { return output(tensor); });
}

}  // namespace detail

}  // namespace drivetrain
