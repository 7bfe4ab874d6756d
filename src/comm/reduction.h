// SPDX-License-Identifier: Apache-2.0
// How values of every type are put into buffers that a transport can reduce.
#pragma once

#include <drivetrain/comm.h>

namespace drivetrain::comm {

// Throws std::invalid_argument, naming the collective, if `op` has no meaning for the type.
void require_reducible(const char* name, at::ScalarType dtype, ReduceOp op);

// The type that values of `dtype` are reduced in: float32 for float16 and bfloat16, a wider
// integer where Gloo lacks the type.
at::ScalarType reduced_in(at::ScalarType dtype);

// Rows of values of one type, ready to be reduced: NaN, which Gloo's max and min lose, is carried
// as a flag in a second half of each row.
at::Tensor encode(const at::Tensor& rows, ReduceOp op);

// The inverse, on reduced rows; divides for a mean.
at::Tensor decode(const at::Tensor& rows, ReduceOp op, int world_size);

}  // namespace drivetrain::comm
