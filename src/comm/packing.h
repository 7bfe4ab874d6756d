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
// the length of the message, at least 1. Undefined tensors take no bytes. With `num_rows`, there is
// room for so many rows of each. Throws std::invalid_argument for sparse tensors.
std::vector<int64_t> offsets_of(const Tensors& tensors,
                                const std::vector<int64_t>* num_rows = nullptr);

// The tensors' bytes, as uint8 (offsets.back()) on the CPU.
at::Tensor pack(const Tensors& tensors, const std::vector<int64_t>& offsets);

// New tensors of the sizes, types and devices of `like` (on the CPU where it is meta).
Tensors unpack(const char* message, const Tensors& like, const std::vector<int64_t>& offsets);

// Rows of one tensor in somebody's message.
struct Piece {
  const char* bytes;
  int64_t num_rows;
};

// The pieces one after the other along dim 0, in the type, trailing sizes and device of `like`.
at::Tensor concatenate(const std::vector<Piece>& pieces, const at::Tensor& like);

}  // namespace drivetrain::comm
