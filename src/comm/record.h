// SPDX-License-Identifier: Apache-2.0
// What a collective is, for messages: cheap to note at each call, text only when it is needed.
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/comm.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

namespace drivetrain::comm {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// What all ranks must have in common but for the tensors.
struct Kind {
  const char* name;          // "all_reduce"
  const char* op = nullptr;  // "sum"
  int root = -1;             // -1: none
  bool is_ragged = false;    // Sizes along `ragged_dim` may differ between the ranks.
  int64_t ragged_dim = 0;
};

struct Record {
  Kind kind{""};
  uint64_t number = 0;  // Counts the collectives of a world from 1; equal on all ranks.
  int64_t num_tensors = 0;
  at::ScalarType dtype = at::kByte;  // Of the first tensor, as is the shape.
  int64_t num_dims = 0;
  std::array<int64_t, 4> shape{};
  Milliseconds timeout{};
  Clock::time_point start;
};

// Everything but the number and the times.
Record make_record(const Kind& kind, c10::ArrayRef<at::Tensor> tensors);

// "all_reduce(sum) #12 of float32[2, 3] and 4 more".
std::string describe(const Record& record);

// All of the tensors, for comparison: "all_reduce(sum) of float32[2, 3], int64[]".
std::string signature(const Kind& kind, c10::ArrayRef<at::Tensor> tensors);

// "float32", "bool".
std::string dtype_name(at::ScalarType dtype);

const char* op_name(ReduceOp op);

// "3.2 s".
std::string seconds(Clock::duration time);

}  // namespace drivetrain::comm
