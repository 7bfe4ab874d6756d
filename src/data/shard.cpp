// SPDX-License-Identifier: Apache-2.0
#include "data/shard.h"

#include <algorithm>

namespace drivetrain::data {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t Shard::num_batches(int rank) const {
  const int64_t left = std::max<int64_t>(num_samples - num_done, 0);
  if (drop_last) return left / (batch_size * world_size);
  const int64_t batches = divide_up(left, batch_size);
  if (even) return divide_up(batches, world_size);
  return divide_up(std::max<int64_t>(batches - rank, 0), world_size);
}

std::pair<int64_t, int64_t> Shard::stretch(int rank, int64_t k) const {
  const int64_t begin = num_done + (k * world_size + rank) * batch_size;
  return {begin, even ? begin + batch_size : std::min(begin + batch_size, num_samples)};
}

std::vector<int64_t> Shard::positions(int rank, int64_t k) const {
  const auto [begin, end] = stretch(rank, k);
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(batch_size));
  for (int64_t p = begin; p < end; ++p)
    out.push_back(p < num_samples ? p : (p - num_samples) % num_samples);
  return out;
}

int64_t Shard::num_real(int rank, int64_t k) const {
  const auto [begin, end] = stretch(rank, k);
  return std::max<int64_t>(std::min(end, num_samples) - begin, 0);
}

int64_t Shard::done_after(int64_t k) const {
  return std::min(num_done + (k + 1) * world_size * batch_size, num_samples);
}

std::vector<int64_t> picks_of_round(const Shard& shard, int rank, int64_t count,
                                    int64_t first_count) {
  const int64_t begin = rank * shard.batch_size;
  std::vector<int64_t> picks;
  for (int64_t q = begin; q < begin + shard.batch_size; ++q) {
    if (q < count)
      picks.push_back(q);
    else if (shard.even)
      picks.push_back(~((q - count) % first_count));
  }
  return picks;
}

}  // namespace drivetrain::data
