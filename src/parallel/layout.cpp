// SPDX-License-Identifier: Apache-2.0
#include "parallel/layout.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace drivetrain::parallel {
namespace {

// A chunk that takes parameters until it is full.
struct Filling {
  ChunkLayout layout;
  int64_t cap = 0;
  size_t last_position = 0;
  bool is_full = false;
};

int64_t bytes_of(const ChunkLayout& chunk) {
  return chunk.numel * static_cast<int64_t>(c10::elementSize(chunk.dtype));
}

// The chunk that takes `spec`: the latest of its kind, or a new one where that is full.
Filling& chunk_for(std::vector<Filling>& chunks, const SlotSpec& spec, const ChunkCaps& caps) {
  const auto latest = std::find_if(chunks.rbegin(), chunks.rend(), [&](const Filling& chunk) {
    return chunk.layout.dtype == spec.dtype && chunk.layout.device == spec.device;
  });
  if (latest != chunks.rend() && !latest->is_full) return *latest;
  Filling fresh;
  fresh.layout.dtype = spec.dtype;
  fresh.layout.device = spec.device;
  fresh.cap = latest == chunks.rend() ? caps.first_bytes : caps.bytes;
  return chunks.emplace_back(std::move(fresh));
}

void append(ChunkLayout& chunk, size_t parameter, int64_t numel) {
  chunk.parameters.push_back(parameter);
  chunk.offsets.push_back(chunk.numel);
  chunk.numel += numel;
}

}  // namespace

std::vector<ChunkLayout> lay_out_chunks(std::span<const SlotSpec> specs,
                                        std::span<const size_t> order, const ChunkCaps& caps) {
  std::vector<Filling> chunks;
  for (size_t position = 0; position < order.size(); ++position) {
    const SlotSpec& spec = specs[order[position]];
    Filling& chunk = chunk_for(chunks, spec, caps);
    append(chunk.layout, order[position], spec.numel);
    chunk.last_position = position;
    chunk.is_full = bytes_of(chunk.layout) >= chunk.cap;
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const Filling& a, const Filling& b) { return a.last_position < b.last_position; });
  std::vector<ChunkLayout> layouts;
  for (Filling& chunk : chunks) layouts.push_back(std::move(chunk.layout));
  return layouts;
}

std::vector<size_t> reverse_order(size_t n) {
  std::vector<size_t> order(n);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

std::vector<size_t> order_of_arrival(std::span<const size_t> arrived,
                                     std::span<const size_t> previous) {
  std::vector<size_t> order(arrived.begin(), arrived.end());
  const std::set<size_t> seen(arrived.begin(), arrived.end());
  for (const size_t parameter : previous)
    if (!seen.contains(parameter)) order.push_back(parameter);
  return order;
}

}  // namespace drivetrain::parallel
