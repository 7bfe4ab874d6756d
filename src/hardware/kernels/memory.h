// SPDX-License-Identifier: Apache-2.0
// From tensors to the memory that the loops walk.
#pragma once

#include <ATen/core/Tensor.h>

#include "hardware/kernels/ranges.h"

namespace drivetrain::kernels {

inline Element element_of(at::ScalarType type) {
  if (type == at::kFloat) return Element::float32;
  if (type == at::kHalf) return Element::float16;
  if (type == at::kBFloat16) return Element::bfloat16;
  return Element::none;
}

// Whether the elements of a tensor lie without gaps or overlap.
inline bool is_dense(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided &&
         tensor.is_non_overlapping_and_dense();
}

// And in host memory.
inline bool is_plain_memory(const at::Tensor& tensor) {
  return is_dense(tensor) && tensor.is_cpu();
}

// As LibTorch's in-place operations do: backward then notices that a saved tensor has changed.
inline void mark_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace drivetrain::kernels
