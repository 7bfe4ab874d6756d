// SPDX-License-Identifier: Apache-2.0
#include "comm/reduction.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <c10/core/ScalarType.h>

#include <limits>
#include <stdexcept>

#include "core/text.h"

namespace drivetrain::comm {

using core::str;

namespace {

bool carries_nan(at::ScalarType dtype, ReduceOp op) {
  return c10::isFloatingType(dtype) && (op == ReduceOp::max || op == ReduceOp::min);
}

const char* op_name(ReduceOp op) {
  constexpr const char* names[] = {"sum", "mean", "max", "min"};
  return names[static_cast<int>(op)];
}

}  // namespace

void require_reducible(const char* name, at::ScalarType dtype, ReduceOp op) {
  const auto refuse = [&](const char* allowed) {
    throw std::invalid_argument(str(name, ": the ", op_name(op), " of ", c10::toString(dtype),
                                    " is not defined; allowed: ", allowed));
  };
  const bool is_order = op == ReduceOp::max || op == ReduceOp::min;
  if (dtype == at::kBool && !is_order)
    refuse("max (any) and min (all); convert to an integer type to count");
  if (c10::isIntegralType(dtype, /*includeBool=*/false) && op == ReduceOp::mean)
    refuse("sum, max, min; convert to a floating type for a mean");
  if (c10::isComplexType(dtype) && is_order) refuse("sum, mean");
  if (c10::isFloat8Type(dtype) || c10::isQIntType(dtype) || dtype == at::kUInt64)
    refuse("floating types of 16 to 64 bits and integers up to int64; convert first");
}

at::ScalarType reduced_in(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
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
