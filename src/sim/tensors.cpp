// SPDX-License-Identifier: Apache-2.0
#include "sim/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "sim/device.h"
#include "sim/memory.h"

namespace drivetrain::sim {

using at::IntArrayRef;
using at::Tensor;

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// Where a new tensor goes, after what cannot be made has been refused.
c10::OptionalDeviceGuard guard_for(std::optional<at::Layout> layout,
                                   std::optional<c10::Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided,
              "sim devices have strided tensors only, not ", c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "only host tensors can be pinned");
  return c10::OptionalDeviceGuard(device);
}

Tensor empty(IntArrayRef sizes, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout> layout, std::optional<c10::Device> device,
             std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  const auto guard = guard_for(layout, device, pinned);
  return at::detail::empty_generic(sizes, device_allocator(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pinned) {
  const auto guard = guard_for(layout, device, pinned);
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

void grow_storage(const Tensor& tensor, IntArrayRef sizes, IntArrayRef strides, int64_t offset) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, tensor.itemsize(),
                                                        static_cast<size_t>(offset));
  if (bytes > tensor.storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), bytes);
}

void set_shape(const Tensor& tensor, IntArrayRef sizes, IntArrayRef strides) {
  grow_storage(tensor, sizes, strides, tensor.storage_offset());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

const Tensor& resize(const Tensor& self, IntArrayRef sizes,
                     std::optional<at::MemoryFormat> format) {
  if (self.sizes() != sizes) set_shape(self, sizes, sim::contiguous_strides(sizes));
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "resize_ cannot preserve a memory format");
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;  // NOLINT(bugprone-return-const-ref-from-parameter): as aten::resize_ is declared
}

Tensor& set_storage(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef sizes,
                    IntArrayRef strides) {
  TORCH_CHECK(source.device() == self.device(), "set_ was given a storage on ", source.device(),
              " for a tensor on ", self.device());
  TORCH_CHECK(offset >= 0, "set_ was given the storage offset ", offset);
  const std::vector<int64_t> contiguous = sim::contiguous_strides(sizes);
  if (strides.size() != sizes.size()) strides = contiguous;
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  set_shape(self, sizes, strides);
  return self;
}

Tensor& set_whole_storage(Tensor& self, c10::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, count, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

Tensor& set_nothing(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage none(c10::Storage::use_byte_size_t{}, 0, device_allocator()->allocate(0),
                    device_allocator(), /*resizable=*/true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

void record_stream(Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

Tensor empty_on(int index, IntArrayRef sizes, IntArrayRef strides, at::ScalarType dtype) {
  return empty_strided(sizes, strides, dtype, std::nullopt,
                       c10::Device(kType, static_cast<c10::DeviceIndex>(index)), std::nullopt);
}

std::vector<int64_t> contiguous_strides(IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;)
    strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

void fit_to(const Tensor& tensor, const Tensor& like) {
  if (tensor.sizes() == like.sizes()) return;
  const c10::DeviceGuard guard(tensor.device());
  set_shape(tensor, like.sizes(), like.strides());
}

void register_tensors(torch::Library& aten) {
  aten.impl("empty.memory_format", empty);
  aten.impl("empty_strided", empty_strided);
  aten.impl("resize_", resize);
  aten.impl("set_.source_Storage_storage_offset", set_storage);
  aten.impl("set_.source_Storage", set_whole_storage);
  aten.impl("set_.source_Tensor", set_tensor);
  aten.impl("set_", set_nothing);
  aten.impl("record_stream", record_stream);
  aten.impl("as_strided", [](const Tensor& self, IntArrayRef sizes, IntArrayRef strides,
                             std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
  });
  aten.impl("view",
            [](const Tensor& self, IntArrayRef sizes) { return at::native::view(self, sizes); });
  aten.impl("_reshape_alias", [](const Tensor& self, IntArrayRef sizes, IntArrayRef strides) {
    return at::native::_reshape_alias(self, sizes, strides);
  });
}

}  // namespace drivetrain::sim
