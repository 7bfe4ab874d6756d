// SPDX-License-Identifier: Apache-2.0
#include "comm/packing.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain::comm {
namespace {

constexpr int64_t kAlignment = 16;

const char* bytes_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

char* mutable_bytes_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.mutable_data_ptr());
}

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
  offsets.back() = std::max<int64_t>(offsets.back(), 1);
  return offsets;
}

at::Tensor pack(const Tensors& tensors, const std::vector<int64_t>& offsets) {
  at::Tensor message = at::empty({offsets.back()}, at::kByte);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].numel() == 0) continue;
    const at::Tensor host = tensors[i].detach().cpu().contiguous();
    std::memcpy(mutable_bytes_of(message) + offsets[i], bytes_of(host), host.nbytes());
  }
  return message;
}

Tensors unpack(const char* message, const Tensors& like, const std::vector<int64_t>& offsets) {
  Tensors tensors;
  for (size_t i = 0; i < like.size(); ++i) {
    if (!like[i].defined()) {
      tensors.emplace_back();
      continue;
    }
    at::Tensor tensor = at::empty(like[i].sizes(), like[i].scalar_type());
    if (tensor.numel() > 0)
      std::memcpy(mutable_bytes_of(tensor), message + offsets[i], tensor.nbytes());
    tensors.push_back(like[i].is_meta() ? tensor : tensor.to(like[i].device()));
  }
  return tensors;
}

at::Tensor concatenate(const std::vector<Piece>& pieces, const at::Tensor& like) {
  int64_t num_rows = 0;
  for (const Piece& piece : pieces) num_rows += piece.num_rows;
  std::vector<int64_t> sizes = {num_rows};
  if (like.dim() > 1) sizes.insert(sizes.end(), like.sizes().begin() + 1, like.sizes().end());
  at::Tensor tensor = at::empty(sizes, like.scalar_type());
  if (tensor.numel() == 0) return tensor.to(like.device());
  const size_t row = tensor.nbytes() / num_rows;
  char* next = mutable_bytes_of(tensor);
  for (const Piece& piece : pieces) {
    std::memcpy(next, piece.bytes, piece.num_rows * row);
    next += piece.num_rows * row;
  }
  return tensor.to(like.device());
}

}  // namespace drivetrain::comm
