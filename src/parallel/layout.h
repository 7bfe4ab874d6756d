// SPDX-License-Identifier: Apache-2.0
// Which gradient goes into which chunk, and where: a pure function of sizes, types and order.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <vector>

namespace drivetrain::parallel {

// What the layout must know of a gradient.
struct SlotSpec {
  int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::Device(c10::kCPU);
};

struct ChunkLayout {
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<size_t> parameters;  // in the order of their slots
  std::vector<int64_t> offsets;    // of each slot, in elements
  int64_t numel = 0;               // of all slots; the flags, one a parameter, follow them
};

struct ChunkCaps {
  int64_t first_bytes = int64_t{1} << 20;
  int64_t bytes = int64_t{25} << 20;
};

// Fills chunks with the parameters in `order` (indices into `specs`, each at most once). A chunk
// holds one type on one device and is closed by the parameter that brings it to its cap, which is
// smaller for the first chunk of each kind: its reduction starts early in backward. Chunks come
// in the order in which their last parameters do.
std::vector<ChunkLayout> lay_out_chunks(std::span<const SlotSpec> specs,
                                        std::span<const size_t> order, const ChunkCaps& caps);

// n-1, ..., 1, 0: about the order in which backward reaches parameters.
std::vector<size_t> reverse_order(size_t n);

// `arrived` (distinct indices into `previous`'s values), then the rest of `previous` as it was.
std::vector<size_t> order_of_arrival(std::span<const size_t> arrived,
                                     std::span<const size_t> previous);

}  // namespace drivetrain::parallel
