// SPDX-License-Identifier: Apache-2.0
#include "comm/reduction.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <limits>

#include "comm/record.h"
#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain::comm {
namespace {

bool carries_nan(at::ScalarType dtype, ReduceOp op) {
  return c10::isFloatingType(dtype) && (op == ReduceOp::max || op == ReduceOp::min);
}

constexpr at::ScalarType kReducible[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                         at::kChar,  at::kByte,   at::kInt,  at::kLong};
constexpr at::ScalarType kConverted[] = {at::kBool,         at::kShort,       at::kUInt16,
                                         at::kUInt32,       at::kComplexHalf, at::kComplexFloat,
                                         at::kComplexDouble};

bool is_among(std::span<const at::ScalarType> types, at::ScalarType dtype) {
  return std::find(types.begin(), types.end(), dtype) != types.end();
}

}  // namespace

void require_reducible(const char* name, at::ScalarType dtype, ReduceOp op) {
  const auto refuse = [&](const char* allowed) {
    core::refuse("comm", core::str(name, ": the ", op_name(op), " of ", dtype_name(dtype),
                                   " is not defined; allowed: ", allowed));
  };
  const bool is_order = op == ReduceOp::max || op == ReduceOp::min;
  if (!is_among(kReducible, dtype) && !is_among(kConverted, dtype))
    refuse("floating types of 16 to 64 bits, complex, bool, and integers up to int64; convert");
  if (dtype == at::kBool && !is_order)
    refuse("max (any) and min (all); convert to an integer type to count");
  if (c10::isIntegralType(dtype, /*includeBool=*/false) && op == ReduceOp::mean)
    refuse("sum, max, min; convert to a floating type for a mean");
  if (c10::isComplexType(dtype) && is_order) refuse("sum, mean");
}

at::ScalarType reduced_in(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kComplexHalf:
    case at::kComplexFloat:
      return at::kFloat;
    case at::kComplexDouble:
      return at::kDouble;
    case at::kBool:
      return at::kByte;
    case at::kShort:
    case at::kUInt16:
      return at::kInt;
    case at::kUInt32:
      return at::kLong;
    default:
      return dtype;
  }
}

bool travels_as_it_is(at::ScalarType dtype, ReduceOp op) {
  return is_among(kReducible, dtype) && !carries_nan(dtype, op);
}

at::Tensor to_reducible(const at::Tensor& tensor, at::Device device) {
  const at::Tensor there = tensor.detach().to(device);
  const at::Tensor real = there.is_complex() ? at::view_as_real(there.resolve_conj()) : there;
  return real.to(reduced_in(tensor.scalar_type())).contiguous();
}

at::Tensor from_reducible(const at::Tensor& values, const at::Tensor& like,
                          c10::IntArrayRef sizes) {
  if (!like.is_complex()) return values.reshape(sizes).to(like.options()).contiguous();
  std::vector<int64_t> pairs = sizes.vec();
  pairs.push_back(2);
  return at::view_as_complex(values.reshape(pairs).contiguous()).to(like.options());
}

at::Tensor encode(const at::Tensor& rows, ReduceOp op) {
  if (!carries_nan(rows.scalar_type(), op)) return rows.contiguous();
  const double worst = std::numeric_limits<double>::infinity() * (op == ReduceOp::max ? -1 : 1);
  const at::Tensor is_nan = at::isnan(rows);
  at::Tensor flag = is_nan.to(rows.scalar_type());
  if (op == ReduceOp::min) flag = flag.neg();
  return at::cat({rows.masked_fill(is_nan, worst), flag}, 1);
}

at::Tensor decode(const at::Tensor& rows, ReduceOp op, int world_size) {
  if (op == ReduceOp::mean) return rows.div(world_size);
  if (!carries_nan(rows.scalar_type(), op)) return rows;
  const int64_t half = rows.size(1) / 2;
  return rows.narrow(1, 0, half)
      .masked_fill(rows.narrow(1, half, half).ne(0), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace drivetrain::comm
