// SPDX-License-Identifier: Apache-2.0
// gather_for_metrics over an epoch: every sample once, in the loader's order, whatever the sizes.
#include <torch/torch.h>

#include <drivetrain/drivetrain.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "ranks.h"

namespace drivetrain {
namespace {

std::vector<torch::Tensor> numbered(int64_t length) {
  std::vector<torch::Tensor> samples;
  for (int64_t i = 0; i < length; ++i) samples.push_back(torch::tensor(i));
  return samples;
}

// What metrics see of an epoch of samples 0 .. length - 1, on every rank alike.
std::vector<int64_t> gathered(int world_size, int64_t length, const DataLoaderOptions& options) {
  std::vector<std::vector<int64_t>> ranks(world_size);
  run_ranks(world_size, [&](const World& world) {
    Accelerator accelerator({.world = world});
    auto batches = accelerator.prepare(DataLoader(numbered(length), options));
    for (auto& batch : batches) {
      const auto all = accelerator.gather_for_metrics(batch).cpu().contiguous();
      ranks[world.rank()].insert(ranks[world.rank()].end(), all.data_ptr<int64_t>(),
                                 all.data_ptr<int64_t>() + all.numel());
    }
  });
  for (const auto& rank : ranks) EXPECT_EQ(rank, ranks[0]);
  return ranks[0];
}

std::vector<int64_t> first(int64_t count) {
  std::vector<int64_t> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = i;
  return numbers;
}

// Lengths that were counted wrongly elsewhere, with batches, worlds and modes.
TEST(GatherForMetrics, CountsEverySampleOnceInOrder) {
  for (const int world_size : {1, 2, 3, 4, 7})
    for (const int64_t length : {0, 1, 5, 82, 99, 512})
      for (const bool dispatch : {false, true}) {
        const DataLoaderOptions options{.batch_size = 16, .dispatch_batches = dispatch};
        EXPECT_EQ(gathered(world_size, length, options), first(length))
            << "world " << world_size << ", length " << length << ", dispatch " << dispatch;
      }
}

TEST(GatherForMetrics, SplitBatches) {
  for (const int world_size : {2, 4})
    for (const int64_t length : {82, 99, 512})
      EXPECT_EQ(gathered(world_size, length, {.batch_size = 16, .split_batches = true}),
                first(length));
}

TEST(GatherForMetrics, UnevenBatchesHaveTheirOwnRows) {
  EXPECT_EQ(gathered(2, 84, {.batch_size = 16, .even_batches = true}), first(84));
}

TEST(GatherForMetrics, DropLastLosesOnlyTheLastRound) {
  EXPECT_EQ(gathered(1, 9, {.batch_size = 5, .drop_last = true}), first(5));
  EXPECT_EQ(gathered(2, 82, {.batch_size = 16, .drop_last = true}), first(64));
}

TEST(GatherForMetrics, FollowsTheInnermostLoader) {
  Accelerator accelerator;
  auto outer = accelerator.prepare(DataLoader(numbered(6), {.batch_size = 2}));
  auto inner = accelerator.prepare(DataLoader(numbered(5), {.batch_size = 3}));
  int64_t inner_rows = 0, outer_rows = 0;
  for (auto& batch : outer) {
    for (auto& other : inner) inner_rows += accelerator.gather_for_metrics(other).size(0);
    outer_rows += accelerator.gather_for_metrics(batch).size(0);
  }
  EXPECT_EQ(inner_rows, 15);
  EXPECT_EQ(outer_rows, 6);
}

TEST(GatherForMetrics, RefusesWhatItCannotCount) {
  Accelerator accelerator;
  EXPECT_ERROR(accelerator.gather_for_metrics(here::ones({2})), std::invalid_argument,
               "gather_for_metrics was called outside a loop over a prepared loader");
  auto batches = accelerator.prepare(DataLoader(numbered(4), {.batch_size = 4}));
  for ([[maybe_unused]] auto& batch : batches) {
    EXPECT_ERROR(accelerator.gather_for_metrics(here::ones({})), std::invalid_argument,
                 "0-dim tensor, which has no row to leave out");
    EXPECT_ERROR(accelerator.gather_for_metrics(here::ones({3})), std::invalid_argument,
                 "a tensor of shape [3] in a batch of 4 samples");
  }
}

}  // namespace
}  // namespace drivetrain
