// SPDX-License-Identifier: Apache-2.0
#include "precision/stochastic_rounding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <bit>

#include "hardware/kernels/blocks.h"
#include "hardware/kernels/memory.h"

namespace drivetrain::precision {
namespace {

constexpr uint32_t kStride = 0x9e3779b9, kFirst = 0x7feb352d, kSecond = 0x846ca68b;
constexpr uint32_t kExponent = 0x7f800000, kMantissa = 0x007fffff, kKept = 0xffff0000;
constexpr uint16_t kNan = 0x7fc0;
// A key serves the places that differ in 32 bits.
constexpr int kPlaceBits = 32;

// A mixer of 64 bits, splitmix64's.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint32_t key_of(uint64_t seed, size_t tensor, int64_t place) {
  const auto high = static_cast<uint64_t>(place) >> kPlaceBits;
  return static_cast<uint32_t>(mixed(mixed(mixed(seed) + tensor) + high));
}

// A mixer of 32 bits. Its upper half is added to the bits that will be cut off.
inline uint32_t noise(uint32_t place, uint32_t key) {
  uint32_t x = place * kStride + key;
  x = (x ^ (x >> 16)) * kFirst;
  x = (x ^ (x >> 15)) * kSecond;
  return (x ^ (x >> 16)) >> 16;
}

inline c10::BFloat16 rounded(float value, uint32_t noise) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_finite = (bits & kExponent) != kExponent;
  const bool is_nan = !is_finite && (bits & kMantissa) != 0;
  const auto kept = static_cast<uint16_t>((is_finite ? bits + noise : bits) >> 16);
  return {is_nan ? kNan : kept, c10::BFloat16::from_bits()};
}

struct Memory {
  c10::BFloat16* to;
  const float* from;
};

void round_on_cpu(const std::vector<Memory>& memory, const std::vector<int64_t>& sizes,
                  uint64_t seed) {
  const kernels::Blocks blocks(sizes);
  kernels::run_blocks(blocks.count(), [&](int64_t block) {
    blocks.for_pieces(block, [&](size_t tensor, int64_t begin, int64_t count) {
      const auto [to, from] = memory[tensor];
      for (int64_t i = begin, end = begin + count; i < end;) {
        const uint32_t key = key_of(seed, tensor, i);
        const int64_t last = std::min(end, ((i >> kPlaceBits) + 1) << kPlaceBits);
        for (; i < last; ++i) to[i] = rounded(from[i], noise(static_cast<uint32_t>(i), key));
      }
    });
  });
}

at::Scalar as_int(uint32_t bits) { return static_cast<int64_t>(std::bit_cast<int32_t>(bits)); }

// x >> n of unsigned numbers, on signed ones.
at::Tensor shifted(const at::Tensor& x, int n) {
  return x.__rshift__(n).bitwise_and(as_int(0xffffffffU >> n));
}

// The same numbers by operations that every device has, a part at a time.
void round_by_operations(const at::Tensor& to, const at::Tensor& from, uint64_t seed,
                         size_t tensor) {
  constexpr int64_t kPart = int64_t{1} << 20;
  for (int64_t begin = 0; begin < from.numel(); begin += kPart) {
    const at::Tensor part = from.slice(0, begin, begin + kPart);
    const uint32_t first = static_cast<uint32_t>(begin) * kStride + key_of(seed, tensor, begin);
    at::Tensor x = at::arange(part.numel(), part.options().dtype(at::kInt));
    x.mul_(as_int(kStride)).add_(as_int(first));
    x.bitwise_xor_(shifted(x, 16)).mul_(as_int(kFirst));
    x.bitwise_xor_(shifted(x, 15)).mul_(as_int(kSecond));
    x = shifted(x.bitwise_xor_(shifted(x, 16)), 16);
    const at::Tensor cut = part.view(at::kInt).add(x).bitwise_and(as_int(kKept)).view(at::kFloat);
    to.slice(0, begin, begin + kPart).copy_(at::where(at::isfinite(part), cut, part));
  }
}

}  // namespace

void round_stochastically(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from,
                          uint64_t seed) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sources, targets;
  for (size_t i = 0; i < from.size(); ++i) {
    sources.push_back(from[i].contiguous().view({-1}));
    targets.push_back(to[i].is_contiguous() ? to[i].view({-1})
                                            : at::empty_like(sources[i], to[i].options()));
  }
  std::vector<Memory> memory(from.size());
  std::vector<int64_t> sizes(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i].is_cpu()) {
      round_by_operations(targets[i], sources[i], seed, i);
      continue;
    }
    memory[i] = {targets[i].mutable_data_ptr<c10::BFloat16>(), sources[i].const_data_ptr<float>()};
    sizes[i] = sources[i].numel();
  }
  round_on_cpu(memory, sizes, seed);
  for (size_t i = 0; i < to.size(); ++i) {
    if (!to[i].is_contiguous()) to[i].copy_(targets[i].view(to[i].sizes()));
    kernels::mark_written(to[i]);
  }
}

}  // namespace drivetrain::precision
