// SPDX-License-Identifier: Apache-2.0
#include "comm/packing.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "comm/staging.h"
#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain::comm {
namespace {

constexpr int64_t kAlignment = 16;

}  // namespace

int64_t num_rows_of(const at::Tensor& tensor) { return tensor.dim() == 0 ? 1 : tensor.size(0); }

namespace {

int64_t row_length(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  if (tensor.layout() != at::kStrided)
    core::refuse("comm", core::str("a collective on a tensor of layout ", tensor.layout(),
                                   "; allowed: strided; pass tensor.to_dense()"));
  int64_t length = static_cast<int64_t>(tensor.element_size());
  for (int64_t d = 1; d < tensor.dim(); ++d) length *= tensor.size(d);
  return length;
}

}  // namespace

std::vector<int64_t> offsets_of(const Tensors& tensors, const std::vector<int64_t>* num_rows) {
  std::vector<int64_t> offsets = {0};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t row = row_length(tensors[i]);
    const int64_t rows = num_rows != nullptr    ? (*num_rows)[i]
                         : tensors[i].defined() ? num_rows_of(tensors[i])
                                                : 0;
    offsets.push_back((offsets.back() + rows * row + kAlignment - 1) / kAlignment * kAlignment);
  }
  // Never empty, so that zero-size tensors need no rule of their own.
  offsets.back() = std::max(offsets.back(), kAlignment);
  return offsets;
}

namespace {

// The bytes of a message from `offset` on, as a tensor. Offsets are multiples of any element's
// size.
at::Tensor window(const at::Tensor& message, int64_t offset, c10::IntArrayRef sizes,
                  at::ScalarType dtype) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(dtype)) * c10::multiply_integers(sizes);
  return message.narrow(0, offset, bytes).view(dtype).view(sizes);
}

}  // namespace

at::Tensor pack(const Tensors& tensors, const std::vector<int64_t>& offsets, at::Device device) {
  const auto bytes = at::TensorOptions(at::kByte);
  const at::Tensor message = device.is_cpu()
                                 ? host_buffer({offsets.back()}, at::kByte, device_among(tensors))
                                 : at::empty({offsets.back()}, bytes.device(device));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].numel() == 0) continue;
    const at::Tensor& tensor = tensors[i];
    window(message, offsets[i], tensor.sizes(), tensor.scalar_type())
        .copy_(tensor.detach(), /*non_blocking=*/true);
  }
  if (device.is_cpu()) finish_copies_from(tensors);
  return message;
}

Tensors unpack(const at::Tensor& message, const Tensors& like,
               const std::vector<int64_t>& offsets) {
  Tensors tensors;
  for (size_t i = 0; i < like.size(); ++i) {
    if (!like[i].defined()) {
      tensors.emplace_back();
      continue;
    }
    const at::Device device = like[i].is_meta() ? at::Device(at::kCPU) : like[i].device();
    at::Tensor tensor =
        at::empty(like[i].sizes(), at::TensorOptions(like[i].scalar_type()).device(device));
    if (tensor.numel() > 0)
      tensor.copy_(window(message, offsets[i], like[i].sizes(), like[i].scalar_type()));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

at::Tensor concatenate(const at::Tensor& messages, int64_t offset, c10::ArrayRef<int64_t> num_rows,
                       const at::Tensor& like) {
  std::vector<int64_t> sizes = {0};
  if (like.dim() > 1) sizes.insert(sizes.end(), like.sizes().begin() + 1, like.sizes().end());
  std::vector<at::Tensor> pieces;
  for (size_t r = 0; r < num_rows.size(); ++r) {
    sizes[0] = num_rows[r];
    pieces.push_back(
        window(messages.select(0, static_cast<int64_t>(r)), offset, sizes, like.scalar_type()));
  }
  return at::cat(pieces).to(like.device());
}

}  // namespace drivetrain::comm
