// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include <cstddef>
#include <numeric>
#include <utility>

namespace drivetrain::data {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

uint64_t finish(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}

  uint64_t next() { return finish(state_ += kGolden); }

  // Uniform in [0, bound): the high half of a product, redrawn where the low half shows bias.
  uint64_t below(uint64_t bound) {
    __extension__ using uint128 = unsigned __int128;
    const uint64_t threshold = -bound % bound;
    while (true) {
      const uint128 product = static_cast<uint128>(next()) * bound;
      if (static_cast<uint64_t>(product) >= threshold) return static_cast<uint64_t>(product >> 64);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace

uint64_t mix(uint64_t seed, uint64_t a, uint64_t b) {
  return finish(finish(finish(seed + kGolden) ^ (a + kGolden)) ^ (b + 2 * kGolden));
}

std::vector<int64_t> permutation(uint64_t seed, uint64_t epoch, int64_t n) {
  std::vector<int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  SplitMix64 random(mix(seed, epoch));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace drivetrain::data
