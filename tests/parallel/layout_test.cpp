// SPDX-License-Identifier: Apache-2.0
#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace drivetrain::parallel {
namespace {

using Indices = std::vector<size_t>;

std::vector<SlotSpec> floats(const std::vector<int64_t>& sizes) {
  std::vector<SlotSpec> specs;
  for (const int64_t size : sizes) specs.push_back({.numel = size});
  return specs;
}

std::vector<Indices> parameters_of(const std::vector<ChunkLayout>& chunks) {
  std::vector<Indices> parameters;
  for (const ChunkLayout& chunk : chunks) parameters.push_back(chunk.parameters);
  return parameters;
}

TEST(Layout, NothingNeedsNoChunk) { EXPECT_TRUE(lay_out_chunks({}, {}, {}).empty()); }

TEST(Layout, ASmallModelIsOneChunkInReverseOrder) {
  const auto specs = floats({6, 0, 2, 1});
  const auto chunks = lay_out_chunks(specs, reverse_order(4), {});
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].parameters, (Indices{3, 2, 1, 0}));
  EXPECT_EQ(chunks[0].offsets, (std::vector<int64_t>{0, 1, 3, 3}));
  EXPECT_EQ(chunks[0].numel, 9);
}

TEST(Layout, TheFirstChunkIsFullSooner) {
  const auto specs = floats({10, 10, 10, 10, 10, 10});
  const ChunkCaps caps = {.first_bytes = 40, .bytes = 81};
  EXPECT_EQ(parameters_of(lay_out_chunks(specs, reverse_order(6), caps)),
            (std::vector<Indices>{{5}, {4, 3, 2}, {1, 0}}));
}

TEST(Layout, AParameterLargerThanTheCapEndsItsChunk) {
  const auto specs = floats({1, 1000, 1});
  const ChunkCaps caps = {.first_bytes = 100, .bytes = 100};
  EXPECT_EQ(parameters_of(lay_out_chunks(specs, Indices{0, 1, 2}, caps)),
            (std::vector<Indices>{{0, 1}, {2}}));
}

TEST(Layout, TypesAndDevicesDoNotMix) {
  std::vector<SlotSpec> specs = floats({4, 4, 4, 4, 4});
  specs[1].dtype = specs[3].dtype = at::kBFloat16;
  specs[2].device = c10::Device("meta");
  const auto chunks = lay_out_chunks(specs, Indices{0, 1, 2, 3, 4}, {});
  EXPECT_EQ(parameters_of(chunks), (std::vector<Indices>{{2}, {1, 3}, {0, 4}}));
  EXPECT_EQ(chunks[1].dtype, at::kBFloat16);
  EXPECT_EQ(chunks[0].device.type(), at::kMeta);
}

TEST(Layout, ParametersOutsideTheOrderHaveNoSlot) {
  EXPECT_EQ(parameters_of(lay_out_chunks(floats({1, 1, 1}), Indices{2, 0}, {})),
            (std::vector<Indices>{{2, 0}}));
}

// Whatever the sizes: each parameter once, slots side by side, no chunk that should have been
// closed before, and chunks by the position of their last parameter.
TEST(Layout, EveryElementHasOnePlace) {
  std::mt19937 engine(7);
  const auto random = [&engine](int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(engine);
  };
  const std::vector<at::ScalarType> types = {at::kFloat, at::kDouble, at::kHalf};
  for (int round = 0; round < 300; ++round) {
    std::vector<SlotSpec> specs(static_cast<size_t>(random(40)));
    for (SlotSpec& spec : specs)
      spec = {.numel = random(50), .dtype = types[static_cast<size_t>(random(3))]};
    Indices order = reverse_order(specs.size());
    std::shuffle(order.begin(), order.end(), engine);
    const ChunkCaps caps = {.first_bytes = 1 + random(100), .bytes = 1 + random(400)};
    std::vector<int> seen(specs.size());
    std::ptrdiff_t last = -1;
    for (const ChunkLayout& chunk : lay_out_chunks(specs, order, caps)) {
      int64_t offset = 0;
      for (size_t slot = 0; slot < chunk.parameters.size(); ++slot) {
        const SlotSpec& spec = specs[chunk.parameters[slot]];
        EXPECT_EQ(spec.dtype, chunk.dtype);
        EXPECT_EQ(chunk.offsets[slot], offset);
        const auto cap = std::max(caps.first_bytes, caps.bytes);
        EXPECT_LT(offset * static_cast<int64_t>(c10::elementSize(chunk.dtype)), cap);
        offset += spec.numel;
        ++seen[chunk.parameters[slot]];
      }
      EXPECT_EQ(chunk.numel, offset);
      const auto position = std::find(order.begin(), order.end(), chunk.parameters.back());
      EXPECT_GT(position - order.begin(), last);
      last = position - order.begin();
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(seen.size()));
  }
}

TEST(Layout, WhatDidNotArriveKeepsItsPlaceBehindWhatDid) {
  EXPECT_EQ(order_of_arrival(Indices{1, 3}, Indices{4, 3, 2, 1, 0}), (Indices{1, 3, 4, 2, 0}));
  EXPECT_EQ(order_of_arrival(Indices{}, Indices{2, 1}), (Indices{2, 1}));
}

}  // namespace
}  // namespace drivetrain::parallel
