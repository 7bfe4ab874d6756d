// SPDX-License-Identifier: Apache-2.0
// The index tables of Accelerate's BatchSamplerShard and IterableDatasetShard, as recorded from
// its tests and runs; and what must hold for any sizes.
#include "data/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace drivetrain::data {
namespace {

using Batches = std::vector<std::vector<int64_t>>;

enum Mode { kEven, kUneven, kDrop };

Shard shard_of(int64_t n, int64_t batch_size, int world, Mode mode) {
  return {.num_samples = n,
          .batch_size = batch_size,
          .world_size = world,
          .drop_last = mode == kDrop,
          .even = mode == kEven};
}

Batches batches_of(const Shard& shard, int rank) {
  Batches out;
  for (int64_t k = 0; k < shard.num_batches(rank); ++k) out.push_back(shard.positions(rank, k));
  return out;
}

struct Row {
  int64_t n, batch_size;
  Mode mode;
  std::vector<Batches> of_rank;
};

class ShardTable : public ::testing::TestWithParam<Row> {};

TEST_P(ShardTable, GivesEachRankTheRecordedIndices) {
  const Row& row = GetParam();
  const auto world = static_cast<int>(row.of_rank.size());
  const Shard shard = shard_of(row.n, row.batch_size, world, row.mode);
  for (int rank = 0; rank < world; ++rank)
    EXPECT_EQ(batches_of(shard, rank), row.of_rank[static_cast<size_t>(rank)])
        << "n=" << row.n << " rank=" << rank;
}

// Three ranks, two rows each.
INSTANTIATE_TEST_SUITE_P(
    ThreeRanks, ShardTable,
    ::testing::Values(
        Row{7, 2, kEven, {{{0, 1}, {6, 0}}, {{2, 3}, {1, 2}}, {{4, 5}, {3, 4}}}},
        Row{10, 2, kEven, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}, {0, 1}}}},
        Row{11, 2, kEven, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}, {10, 0}}}},
        Row{13,
            2,
            kEven,
            {{{0, 1}, {6, 7}, {12, 0}}, {{2, 3}, {8, 9}, {1, 2}}, {{4, 5}, {10, 11}, {3, 4}}}},
        Row{14,
            2,
            kEven,
            {{{0, 1}, {6, 7}, {12, 13}}, {{2, 3}, {8, 9}, {0, 1}}, {{4, 5}, {10, 11}, {2, 3}}}},
        Row{10, 2, kUneven, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}}}},
        Row{11, 2, kUneven, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}, {10}}}},
        Row{13, 2, kUneven, {{{0, 1}, {6, 7}, {12}}, {{2, 3}, {8, 9}}, {{4, 5}, {10, 11}}}},
        Row{13, 2, kDrop, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}, {10, 11}}}},
        Row{22,
            8,
            kEven,
            {{{0, 1, 2, 3, 4, 5, 6, 7}},
             {{8, 9, 10, 11, 12, 13, 14, 15}},
             {{16, 17, 18, 19, 20, 21, 0, 1}}}}));

INSTANTIATE_TEST_SUITE_P(
    FourRanks, ShardTable,
    ::testing::Values(
        Row{5, 4, kEven, {{{0, 1, 2, 3}}, {{4, 0, 1, 2}}, {{3, 4, 0, 1}}, {{2, 3, 4, 0}}}},
        Row{1, 4, kEven, {{{0, 0, 0, 0}}, {{0, 0, 0, 0}}, {{0, 0, 0, 0}}, {{0, 0, 0, 0}}}}));

const Batches kRank0 = {{0, 1, 2}, {6, 7, 8}, {12, 13, 14}, {18, 19, 20}};
const Batches kRank1 = {{3, 4, 5}, {9, 10, 11}, {15, 16, 17}};

Batches plus(Batches batches, std::vector<int64_t> last) {
  batches.push_back(std::move(last));
  return batches;
}
Batches first_three(const Batches& batches) { return {batches.begin(), batches.begin() + 3}; }

INSTANTIATE_TEST_SUITE_P(
    TwoRanks, ShardTable,
    ::testing::Values(
        Row{24, 3, kEven, {kRank0, plus(kRank1, {21, 22, 23})}},
        Row{24, 3, kDrop, {kRank0, plus(kRank1, {21, 22, 23})}},
        Row{21, 3, kEven, {kRank0, plus(kRank1, {0, 1, 2})}},
        Row{21, 3, kDrop, {first_three(kRank0), kRank1}},
        Row{22, 3, kEven, {kRank0, plus(kRank1, {21, 0, 1})}},
        Row{22, 3, kDrop, {first_three(kRank0), kRank1}},
        Row{20, 3, kEven, {plus(first_three(kRank0), {18, 19, 0}), plus(kRank1, {1, 2, 3})}},
        Row{20, 3, kDrop, {first_three(kRank0), kRank1}},
        Row{2, 3, kEven, {{{0, 1, 0}}, {{1, 0, 1}}}}, Row{2, 3, kDrop, {{}, {}}},
        Row{21, 3, kUneven, {kRank0, kRank1}}, Row{22, 3, kUneven, {kRank0, plus(kRank1, {21})}},
        Row{20, 3, kUneven, {plus(first_three(kRank0), {18, 19}), kRank1}},
        Row{2, 3, kUneven, {{{0, 1}}, {}}}));

// split_batches: batches of 4 over two ranks, of 6 over three.
const Batches kHalf0 = {{0, 1}, {4, 5}, {8, 9}, {12, 13}, {16, 17}};
const Batches kHalf1 = {{2, 3}, {6, 7}, {10, 11}, {14, 15}, {18, 19}};

INSTANTIATE_TEST_SUITE_P(
    SplitBatches, ShardTable,
    ::testing::Values(Row{24, 2, kEven, {plus(kHalf0, {20, 21}), plus(kHalf1, {22, 23})}},
                      Row{22, 2, kEven, {plus(kHalf0, {20, 21}), plus(kHalf1, {0, 1})}},
                      Row{21, 2, kEven, {plus(kHalf0, {20, 0}), plus(kHalf1, {1, 2})}},
                      Row{2, 2, kEven, {{{0, 1}}, {{0, 1}}}}, Row{22, 2, kDrop, {kHalf0, kHalf1}},
                      Row{21, 2, kDrop, {kHalf0, kHalf1}}, Row{2, 2, kDrop, {{}, {}}},
                      Row{22, 2, kUneven, {plus(kHalf0, {20, 21}), kHalf1}},
                      Row{21, 2, kUneven, {plus(kHalf0, {20}), kHalf1}},
                      Row{2, 2, kUneven, {{{0, 1}}, {}}},
                      Row{10, 2, kEven, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}, {0, 1}}}},
                      Row{10, 2, kUneven, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}}}}));

// Whole batches of varying sizes: positions are numbers of batches.
INSTANTIATE_TEST_SUITE_P(
    WholeBatches, ShardTable,
    ::testing::Values(Row{7, 1, kEven, {{{0}, {3}, {6}}, {{1}, {4}, {0}}, {{2}, {5}, {1}}}},
                      Row{5, 1, kUneven, {{{0}, {2}, {4}}, {{1}, {3}}}},
                      Row{5, 1, kEven, {{{0}, {2}, {4}}, {{1}, {3}, {0}}}},
                      Row{4, 1, kEven, {{{0}, {2}}, {{1}, {3}}}},
                      Row{1, 1, kEven, {{{0}}, {{0}}, {{0}}}},
                      Row{5, 1, kDrop, {{{0}, {2}}, {{1}, {3}}}}));

TEST(Shard, OfAStreamGivesTheSameSharesAsOfADataset) {
  for (const int world : {1, 2, 3, 4, 7})
    for (int64_t n = 0; n < 40; ++n)
      for (const Mode mode : {kEven, kUneven, kDrop}) {
        const Shard shard = shard_of(n, 2, world, mode);
        const int64_t rows = shard.batch_size * world;
        const int64_t first_count = std::min(n, rows);
        for (int rank = 0; rank < world; ++rank)
          for (int64_t k = 0; k < shard.num_batches(rank); ++k) {
            std::vector<int64_t> picked;
            const int64_t count = std::min(n - k * rows, rows);
            for (const int64_t i : picks_of_round(shard, rank, count, first_count))
              picked.push_back(i >= 0 ? k * rows + i : ~i);
            ASSERT_EQ(picked, shard.positions(rank, k)) << n << " " << world << " " << rank;
          }
      }
}

struct Counts {
  std::vector<int64_t> real, all;
};

Counts count_samples(const Shard& shard) {
  Counts counts{std::vector<int64_t>(static_cast<size_t>(shard.num_samples)),
                std::vector<int64_t>(static_cast<size_t>(shard.num_samples))};
  for (int rank = 0; rank < shard.world_size; ++rank)
    for (int64_t k = 0; k < shard.num_batches(rank); ++k) {
      const auto positions = shard.positions(rank, k);
      for (size_t i = 0; i < positions.size(); ++i) {
        ++counts.all.at(static_cast<size_t>(positions[i]));
        if (static_cast<int64_t>(i) < shard.num_real(rank, k))
          ++counts.real.at(static_cast<size_t>(positions[i]));
      }
    }
  return counts;
}

TEST(Shard, CoversEverySampleOnceForAnySizes) {
  std::mt19937 random(7);
  for (int i = 0; i < 4000; ++i) {
    Shard shard = shard_of(random() % 200, 1 + random() % 9, 1 + static_cast<int>(random() % 8),
                           static_cast<Mode>(random() % 3));
    shard.num_done = random() % 3 == 0 ? static_cast<int64_t>(random() % 50) : 0;
    const Counts counts = count_samples(shard);
    const int64_t left = std::max<int64_t>(shard.num_samples - shard.num_done, 0);
    const int64_t rows = shard.batch_size * shard.world_size;
    const int64_t covered = shard.drop_last ? left / rows * rows : left;
    for (int64_t s = 0; s < shard.num_samples; ++s) {
      const bool in = s >= shard.num_done && s < shard.num_done + covered;
      ASSERT_EQ(counts.real[static_cast<size_t>(s)], in ? 1 : 0) << "sample " << s;
    }
    // Even shares are equal, whole batches; uneven ones hold no filling.
    for (int rank = 0; rank < shard.world_size; ++rank) {
      if (shard.even || shard.drop_last) {
        ASSERT_EQ(shard.num_batches(rank), shard.num_batches(0));
      } else {
        ASSERT_LE(shard.num_batches(0) - shard.num_batches(rank), 1);
      }
    }
    ASSERT_TRUE(shard.even || counts.all == counts.real);
  }
}

TEST(Shard, CountsWhatIsUsedUpAfterEachRound) {
  const Shard shard = shard_of(13, 2, 3, kEven);
  EXPECT_EQ(shard.done_after(0), 6);
  EXPECT_EQ(shard.done_after(1), 12);
  EXPECT_EQ(shard.done_after(2), 13);
}

}  // namespace
}  // namespace drivetrain::data
