// SPDX-License-Identifier: Apache-2.0
// Small datasets whose samples are their own indices.
#pragma once

#include <drivetrain/data.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace drivetrain {

using Indices = std::vector<int64_t>;

inline Indices values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous().view({-1});
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// Sample i is the number i.
struct Numbers {
  size_t count;
  int64_t get(size_t index) const { return static_cast<int64_t>(index); }
  size_t size() const { return count; }
};

// LibTorch's form of the same: data is (2) and target is ().
struct Pairs : torch::data::Dataset<Pairs> {
  explicit Pairs(size_t count) : count(count) {}
  torch::data::Example<> get(size_t index) override {
    const auto value = static_cast<float>(index);
    return {torch::tensor({value, value + 0.5F}), torch::tensor(static_cast<int64_t>(index))};
  }
  std::optional<size_t> size() const override { return count; }
  size_t count;
};

// 0 .. count-1 in order, anew after each reset.
struct Counter {
  int64_t count;
  int64_t next_value = 0;
  std::optional<int64_t> next() {
    return next_value < count ? std::optional(next_value++) : std::nullopt;
  }
  void reset() { next_value = 0; }
};

// The batches of one pass.
template <class Batch>
std::vector<Indices> batches_of(DataLoader<Batch>& loader) {
  std::vector<Indices> out;
  for (auto& batch : loader) out.push_back(values(batch));
  return out;
}

inline Indices joined(const std::vector<Indices>& batches) {
  Indices out;
  for (const Indices& batch : batches) out.insert(out.end(), batch.begin(), batch.end());
  return out;
}

inline Indices range(int64_t begin, int64_t end) {
  Indices out;
  for (int64_t i = begin; i < end; ++i) out.push_back(i);
  return out;
}

}  // namespace drivetrain
