// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/blocks.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace drivetrain::kernels {

Blocks::Blocks(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {
  int64_t end = 0;
  ends_.reserve(sizes_.size());
  for (const int64_t size : sizes_) {
    end += (size + kAlignment - 1) / kAlignment * kAlignment;
    ends_.push_back(end);
  }
}

// LibTorch's own threads are reached through the loop of an iterator, which is compiled into it:
// one element a thread, and each takes shares of blocks until none is left. Its start and end order
// memory.
void run_blocks(int64_t count, c10::function_ref<void(int64_t)> task) {
  constexpr int64_t kFewest = 2;  // a thread
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), count / kFewest);
  if (threads < 2) {
    for (int64_t block = 0; block < count; ++block) task(block);
    return;
  }
  // Neighbours share pages and the processor's prefetching; enough shares are left to even out.
  constexpr int64_t kShares = 16, kMostNeighbours = 16;  // a thread; a share
  const int64_t neighbours = std::clamp<int64_t>(count / (threads * kShares), 1, kMostNeighbours);
  std::atomic<int64_t> next{0};
  const auto take_all = [&](char**, const int64_t*, int64_t, int64_t) {
    int64_t first = 0;
    while ((first = next.fetch_add(neighbours, std::memory_order_relaxed)) < count)
      for (int64_t block = first; block < std::min(first + neighbours, count); ++block) task(block);
  };
  const at::Tensor seats = at::empty({threads}, at::kByte);
  auto iterator = at::TensorIterator::borrowing_nullary_op(seats);
  iterator.for_each(take_all, /*grain_size=*/1);
}

}  // namespace drivetrain::kernels
