// SPDX-License-Identifier: Apache-2.0
// How values of every type are put into buffers that a transport can reduce.
#pragma once

#include <drivetrain/comm.h>

namespace drivetrain::comm {

// Throws std::invalid_argument, naming the collective, if `op` has no meaning for the type.
void require_reducible(const char* name, at::ScalarType dtype, ReduceOp op);

// The type that values of `dtype` are reduced in: float32 for float16 and bfloat16, real for
// complex, a wider integer where Gloo lacks the type.
at::ScalarType reduced_in(at::ScalarType dtype);

// True if a transport reduces the type without any of the below; float16 and bfloat16 included.
bool travels_as_it_is(at::ScalarType dtype, ReduceOp op);

// The values on `device` in the type that they are reduced in, any shape; complex ones have a last
// dim of two.
at::Tensor to_reducible(const at::Tensor& tensor, at::Device device);

// The inverse: contiguous, of `sizes`, and of the type and device of `like`.
at::Tensor from_reducible(const at::Tensor& values, const at::Tensor& like, c10::IntArrayRef sizes);

// Rows of values of one type, ready to be reduced in place: NaN, which Gloo's max and min lose, is
// carried as a flag in a second half of each row.
at::Tensor encode(const at::Tensor& rows, ReduceOp op);

// The inverse, on reduced rows; divides for a mean.
at::Tensor decode(const at::Tensor& rows, ReduceOp op, int world_size);

}  // namespace drivetrain::comm
