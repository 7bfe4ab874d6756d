// SPDX-License-Identifier: Apache-2.0
#include "sim/alias.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include "sim/memory.h"

namespace drivetrain::sim {
namespace {

// A tensor over `storage` with the shape and the flags of `like`.
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                       like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.is_complex()) impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  return made;
}

void copy_number_flag(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number())
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

template <class Made>
const at::Tensor* known(const Made& made, const at::Tensor& tensor) {
  for (const auto& [original, alias] : made)
    if (original.is_same(tensor)) return &alias;
  return nullptr;
}

}  // namespace

bool is_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

c10::Storage CpuAliases::storage_of(const c10::Storage& storage) {
  for (const auto& [original, alias] : storages_)
    if (original.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return alias;
  // mutable_data would break up a lazy copy; there are none on these devices.
  void* data = of_kernels(storage.data());
  c10::Storage alias(c10::Storage::use_byte_size_t{}, storage.nbytes(),
                     c10::DataPtr(data, c10::Device(c10::kCPU)), c10::GetCPUAllocator(),
                     /*resizable=*/true);
  storages_.emplace_back(storage, alias);
  return alias;
}

at::Tensor CpuAliases::of(const at::Tensor& tensor) {
  if (!is_sim(tensor)) return tensor;
  if (const at::Tensor* alias = known(tensors_, tensor)) return *alias;
  auto alias = tensor_over(storage_of(tensor.storage()), c10::DispatchKey::CPU, tensor);
  copy_number_flag(tensor, alias);
  tensors_.emplace_back(tensor, alias);
  return alias;
}

at::Tensor CpuAliases::view_on_device(const at::Tensor& result) const {
  for (const auto& [original, alias] : tensors_)
    if (alias.is_same(result)) return original;
  if (!result.has_storage()) return {};
  for (const auto& [original, alias] : storages_)
    if (alias.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl())
      return tensor_over(original, c10::DispatchKey::PrivateUse1, result);
  return {};
}

at::Tensor MetaAliases::of(const at::Tensor& tensor) {
  if (!is_sim(tensor)) return tensor;
  if (const at::Tensor* alias = known(tensors_, tensor)) return *alias;
  at::Tensor alias =
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  copy_number_flag(tensor, alias);
  tensors_.emplace_back(tensor, alias);
  return alias;
}

at::Tensor MetaAliases::empty_of(const at::Tensor& tensor) {
  if (!is_sim(tensor)) return tensor;
  if (const at::Tensor* alias = known(tensors_, tensor)) return *alias;
  at::Tensor alias = at::detail::empty_strided_meta({0}, {1}, tensor.scalar_type());
  tensors_.emplace_back(tensor, alias);
  return alias;
}

}  // namespace drivetrain::sim
