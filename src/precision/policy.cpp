// SPDX-License-Identifier: Apache-2.0
#include "precision/policy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain::precision {
namespace {

[[noreturn]] void refuse(const std::string& message) { core::refuse("precision", message); }

bool is_reduced(std::optional<at::ScalarType> dtype) {
  return dtype && at::isReducedFloatingType(*dtype);
}

void check_type(const char* what, std::optional<at::ScalarType> dtype) {
  if (dtype && dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16)
    refuse(core::str("the policy's ", what, " is ", *dtype, "; allowed: Float, Half, BFloat16"));
}

// The norms whose statistics are buffers: "" or "layer1.bn." before "running_mean".
std::set<std::string> prefixes_of_norms(const NamedTensors& buffers) {
  constexpr std::string_view kStatistic = "running_mean";
  std::set<std::string> prefixes;
  for (const auto& [name, buffer] : buffers)
    if (name == kStatistic || name.ends_with(core::str(".", kStatistic)))
      prefixes.insert(name.substr(0, name.size() - kStatistic.size()));
  return prefixes;
}

// Copies tensors in another type, those that share storage together.
class Converter {
 public:
  Converter(const NamedTensors& tensors, at::ScalarType dtype) : dtype_(dtype) {
    for (const auto& [name, tensor] : tensors)
      if (tensor.has_storage()) users_[storage_of(tensor)].insert(tensor.unsafeGetTensorImpl());
  }

  // `what` is "parameter weight" for messages.
  at::Tensor copy(const std::string& what, const at::Tensor& tensor) {
    const at::Tensor plain = tensor.detach();
    if (plain.scalar_type() == dtype_ || !plain.has_storage()) return plain.to(dtype_);
    const auto* storage = storage_of(tensor);
    if (users_[storage].size() == 1) return plain.to(dtype_);
    Whole& whole = wholes_[storage];
    if (!whole.converted.defined()) whole = convert_whole(plain);
    if (whole.from != plain.scalar_type())
      refuse(core::str(what, " is ", plain.scalar_type(),
                       " and shares its memory with a tensor of ", whole.from,
                       ", so it cannot become ", dtype_,
                       "; allowed: tensors of one type in one memory; leave param_dtype and "
                       "buffer_dtype out for this model"));
    return at::empty({0}, whole.converted.options())
        .set_(whole.converted.storage(), plain.storage_offset(), plain.sizes(), plain.strides());
  }

 private:
  struct Whole {
    at::Tensor converted;
    at::ScalarType from = at::kFloat;
  };

  static const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  }

  Whole convert_whole(const at::Tensor& plain) const {
    const auto numel = static_cast<int64_t>(plain.storage().nbytes() / plain.itemsize());
    const at::Tensor flat = at::empty({0}, plain.options()).set_(plain.storage(), 0, {numel}, {1});
    return {flat.to(dtype_), plain.scalar_type()};
  }

  at::ScalarType dtype_;
  std::map<const c10::StorageImpl*, std::set<const void*>> users_;
  std::map<const c10::StorageImpl*, Whole> wholes_;
};

// The floating-point ones that are not of a norm, each once.
NamedTensors to_convert(const NamedTensors& named, const std::set<std::string>& norms) {
  NamedTensors chosen;
  std::set<const void*> seen;
  for (const auto& [name, tensor] : named) {
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    if (tensor.defined() && tensor.is_floating_point() && !norms.contains(prefix) &&
        seen.insert(tensor.unsafeGetTensorImpl()).second)
      chosen.emplace_back(name, tensor);
  }
  return chosen;
}

NamedTensors joined(NamedTensors first, const NamedTensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

void check(const MixedPrecisionPolicy& policy, MixedPrecision autocast) {
  check_type("param_dtype", policy.param_dtype);
  check_type("reduce_dtype", policy.reduce_dtype);
  check_type("buffer_dtype", policy.buffer_dtype);
  check_type("output_dtype", policy.output_dtype);
  if (policy.param_dtype && autocast != MixedPrecision::no)
    refuse(
        "the policy has a param_dtype and mixed_precision (or DRIVETRAIN_MIXED_PRECISION) asks for "
        "autocast, which computes in another way; allowed: one of the two; leave param_dtype out, "
        "or set mixed_precision = MixedPrecision::no");
  if (!policy.master_weights && !is_reduced(policy.param_dtype))
    refuse(
        "the policy has master_weights = false and no param_dtype of 16 bits, without which there "
        "are none; allowed: with param_dtype Half or BFloat16; set that, or leave it out");
  if (policy.stochastic_rounding && policy.param_dtype != at::kBFloat16)
    refuse(core::str("the policy has stochastic_rounding and ",
                     policy.param_dtype ? core::str("param_dtype ", *policy.param_dtype)
                                        : std::string("no param_dtype"),
                     "; allowed: with BFloat16, which it rounds to; set that, or leave it out"));
}

std::vector<Master> convert_(const NamedTensors& parameters, const NamedTensors& buffers,
                             const MixedPrecisionPolicy& policy) {
  const at::NoGradGuard no_grad;
  const std::set<std::string> norms = prefixes_of_norms(buffers);
  const NamedTensors weights = to_convert(parameters, norms);
  const NamedTensors others = to_convert(buffers, norms);
  const NamedTensors all = joined(weights, others);
  std::vector<Master> masters;
  std::vector<std::pair<at::Tensor, at::Tensor>> changes;
  Converter to_float(all, at::kFloat);
  if (policy.param_dtype) {
    Converter to_type(all, *policy.param_dtype);
    for (const auto& [name, parameter] : weights) {
      if (is_reduced(policy.param_dtype))
        masters.push_back({name, parameter, to_float.copy("parameter " + name, parameter)});
      changes.emplace_back(parameter, to_type.copy("parameter " + name, parameter));
    }
  }
  if (policy.buffer_dtype) {
    Converter to_type(all, *policy.buffer_dtype);
    for (const auto& [name, buffer] : others)
      changes.emplace_back(buffer, to_type.copy("buffer " + name, buffer));
  }
  // All or nothing: what can fail has been done.
  for (const auto& [tensor, changed] : changes)
    if (tensor.scalar_type() != changed.scalar_type()) tensor.set_data(changed);
  return masters;
}

}  // namespace drivetrain::precision
