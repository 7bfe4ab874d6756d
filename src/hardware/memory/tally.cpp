// SPDX-License-Identifier: Apache-2.0
#include "hardware/memory/tally.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

namespace drivetrain::hardware {
namespace {

bool is_compressed(const at::Tensor& tensor) {
  const at::Layout layout = tensor.layout();
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
         layout == at::kSparseBsc;
}

}  // namespace

int64_t Tally::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  // The members of the implementations, since the tensors' own functions make aliases.
  if (tensor.layout() == at::kSparse) {
    const auto* sparse = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    return add(sparse->indices()) + add(sparse->values());
  }
  if (is_compressed(tensor)) {
    const auto* sparse = static_cast<const at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
    return add(sparse->compressed_indices()) + add(sparse->plain_indices()) + add(sparse->values());
  }
  return tensor.has_storage() ? add_storage(tensor.storage()) : 0;
}

int64_t Tally::add_storage(const c10::Storage& storage) {
  if (!seen_.insert(storage.unsafeGetStorageImpl()).second) return 0;
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const c10::Device device = storage.device();
  const bool here =
      device.type() == device_.type() && (device_.is_cpu() || device.index() == device_.index());
  if (!here) {
    elsewhere_ += bytes;
    return 0;
  }
  if (keep_) storages_.push_back(storage);
  return bytes;
}

}  // namespace drivetrain::hardware
