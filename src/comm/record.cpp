// SPDX-License-Identifier: Apache-2.0
#include "comm/record.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdio>

#include "core/text.h"

namespace drivetrain::comm {
namespace {

std::string label(const Kind& kind) {
  std::string text = kind.name;
  if (kind.op != nullptr) text += core::str("(", kind.op, ")");
  if (kind.root >= 0) text += core::str("(root ", kind.root, ")");
  return text;
}

std::string shape_text(c10::IntArrayRef sizes, int64_t num_dims, int64_t ragged_dim) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool is_ragged = static_cast<int64_t>(i) == ragged_dim;
    text += core::str(i > 0 ? ", " : "", is_ragged ? "*" : std::to_string(sizes[i]));
  }
  return text + (num_dims > static_cast<int64_t>(sizes.size()) ? ", ...]" : "]");
}

}  // namespace

Record make_record(const Kind& kind, c10::ArrayRef<at::Tensor> tensors) {
  Record record;
  record.kind = kind;
  record.num_tensors = static_cast<int64_t>(tensors.size());
  if (tensors.empty() || !tensors[0].defined()) return record;
  record.dtype = tensors[0].scalar_type();
  const auto sizes = tensors[0].sizes();
  record.num_dims = static_cast<int64_t>(sizes.size());
  std::copy_n(sizes.begin(), std::min(sizes.size(), record.shape.size()), record.shape.begin());
  return record;
}

std::string describe(const Record& record) {
  std::string text = core::str(label(record.kind), " #", record.number);
  if (record.num_tensors == 0) return text;
  const auto shown = static_cast<size_t>(std::min<int64_t>(record.num_dims, record.shape.size()));
  text += core::str(" of ", dtype_name(record.dtype),
                    shape_text({record.shape.data(), shown}, record.num_dims, -1));
  if (record.num_tensors > 1) text += core::str(" and ", record.num_tensors - 1, " more");
  return text;
}

std::string signature(const Kind& kind, c10::ArrayRef<at::Tensor> tensors) {
  std::string text = label(kind);
  for (size_t i = 0; i < tensors.size(); ++i) {
    text += i == 0 ? " of " : ", ";
    if (!tensors[i].defined()) {
      text += "none";
      continue;
    }
    const int64_t dims = tensors[i].dim();
    const int64_t ragged = kind.ragged_dim < 0 ? kind.ragged_dim + dims : kind.ragged_dim;
    text += dtype_name(tensors[i].scalar_type()) +
            shape_text(tensors[i].sizes(), dims, kind.is_ragged ? ragged : -1);
  }
  return text;
}

std::string dtype_name(at::ScalarType dtype) {
  constexpr std::pair<at::ScalarType, const char*> names[] = {
      {at::kFloat, "float32"},     {at::kDouble, "float64"}, {at::kHalf, "float16"},
      {at::kBFloat16, "bfloat16"}, {at::kByte, "uint8"},     {at::kChar, "int8"},
      {at::kShort, "int16"},       {at::kInt, "int32"},      {at::kLong, "int64"},
      {at::kBool, "bool"}};
  for (const auto& [type, name] : names)
    if (type == dtype) return name;
  return c10::toString(dtype);
}

const char* op_name(ReduceOp op) {
  constexpr const char* names[] = {"sum", "mean", "max", "min"};
  return names[static_cast<int>(op)];
}

std::string seconds(Clock::duration time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
  return text.data();
}

}  // namespace drivetrain::comm
