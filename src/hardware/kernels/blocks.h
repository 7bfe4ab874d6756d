// SPDX-License-Identifier: Apache-2.0
// Work on a list of tensors in blocks of equal size, whatever the sizes of the tensors, on the
// threads of LibTorch.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace drivetrain::kernels {

// The tensors are laid end to end, each from a multiple of kAlignment on, and the whole is cut
// every kBlock elements. So a block holds pieces of one tensor or of many, and which pieces it
// holds depends on the sizes alone.
class Blocks {
 public:
  static constexpr int64_t kBlock = 16384;
  static constexpr int64_t kAlignment = 64;

  // The numbers of elements of the tensors, in their order.
  explicit Blocks(std::vector<int64_t> sizes);

  int64_t count() const { return (ends_.empty() ? 0 : ends_.back() + kBlock - 1) / kBlock; }

  // Calls piece(tensor, begin, count), with count > 0, for the pieces of a block in their order.
  template <class Piece>
  void for_pieces(int64_t block, const Piece& piece) const {
    const int64_t begin = block * kBlock, end = begin + kBlock;
    auto tensor =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    for (; tensor < sizes_.size(); ++tensor) {
      const int64_t start = tensor == 0 ? 0 : ends_[tensor - 1];
      if (start >= end) return;
      const int64_t from = std::max(begin, start) - start;
      const int64_t to = std::min(end - start, sizes_[tensor]);
      if (from < to) piece(tensor, from, to - from);
    }
  }

 private:
  std::vector<int64_t> sizes_;
  std::vector<int64_t> ends_;  // of each tensor with its padding
};

// Calls task(0) ... task(count - 1), each once, in no order, on at most at::get_num_threads()
// threads; the caller's alone where there is too little work. A task must not throw, and must use
// no tensors, only memory.
//
// at::parallel_for is a template over OpenMP: it runs on one thread in every program that is not
// compiled for OpenMP, and on threads beside LibTorch's in one compiled for another OpenMP.
void run_blocks(int64_t count, c10::function_ref<void(int64_t)> task);

}  // namespace drivetrain::kernels
