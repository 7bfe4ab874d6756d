// SPDX-License-Identifier: Apache-2.0
// Tensors that stand in for those of a simulated device in one call of an operation.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <utility>
#include <vector>

namespace drivetrain::sim {

bool is_sim(const at::Tensor& tensor);  // false if undefined

// CPU tensors over the same memory, at the addresses where kernels find it. Tensors that share a
// storage, or are one object, still do. Only metadata is touched.
class CpuAliases {
 public:
  at::Tensor of(const at::Tensor& tensor);
  // The tensor on the device that `result` is a view of, as the same view; undefined if it is none.
  at::Tensor view_on_device(const at::Tensor& result) const;

 private:
  c10::Storage storage_of(const c10::Storage& storage);

  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
};

// Meta tensors of the same shapes.
class MetaAliases {
 public:
  at::Tensor of(const at::Tensor& tensor);
  // One with no elements, unless the tensor has an alias already.
  at::Tensor empty_of(const at::Tensor& tensor);

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

// fn on every tensor in the value, which may be one, a list, or a list of optional ones.
template <class Fn>
void for_each_tensor(const c10::IValue& value, Fn&& fn) {
  if (value.isTensor()) return fn(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& each : value.toTensorVector()) fn(each);
  if (value.isOptionalTensorList())
    for (const auto& each : value.toOptionalTensorVector())
      if (each) fn(*each);
}

// The value with fn(tensor) for every tensor in it.
template <class Fn>
c10::IValue with_each_tensor(const c10::IValue& value, Fn&& fn) {
  if (value.isTensor()) return fn(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> list = value.toTensorVector();
    for (at::Tensor& each : list) each = fn(each);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& each : value.toOptionalTensorVector())
      list.push_back(each ? std::optional<at::Tensor>(fn(*each)) : std::nullopt);
    return list;
  }
  return value;
}

}  // namespace drivetrain::sim
