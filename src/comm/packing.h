// SPDX-License-Identifier: Apache-2.0
// Many tensors as one message.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace drivetrain::comm {

using Tensors = std::vector<at::Tensor>;

// The rows that a tensor has along dim 0; a 0-dim tensor is one row.
int64_t num_rows_of(const at::Tensor& tensor);

// Where each tensor's bytes begin in a message, each on a boundary of 16 bytes; the last entry is
// the length of the message, at least 16. Undefined tensors take no bytes. With `num_rows`, there
// is room for so many rows of each. Throws std::invalid_argument for sparse tensors.
std::vector<int64_t> offsets_of(const Tensors& tensors,
                                const std::vector<int64_t>* num_rows = nullptr);

// The tensors' bytes, as uint8 (offsets.back()) on `device`, or in host memory, which is
// page-locked where that serves a tensor.
at::Tensor pack(const Tensors& tensors, const std::vector<int64_t>& offsets, at::Device device);

// New tensors of the sizes, types and devices of `like` (on the CPU where it is meta).
Tensors unpack(const at::Tensor& message, const Tensors& like, const std::vector<int64_t>& offsets);

// The first num_rows[r] rows of one tensor in message r, one after the other along dim 0, in the
// type, trailing sizes and device of `like`. `messages` is uint8 (number of messages, length).
at::Tensor concatenate(const at::Tensor& messages, int64_t offset, c10::ArrayRef<int64_t> num_rows,
                       const at::Tensor& like);

}  // namespace drivetrain::comm
