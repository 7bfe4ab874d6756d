// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/data.h>
#include <gmock/gmock.h>

#include <deque>
#include <random>
#include <set>

#include "data/datasets.h"
#include "expect_error.h"

namespace drivetrain {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DataLoader, RefusesANullDataset) {
  EXPECT_ERROR(DataLoader(std::shared_ptr<std::vector<at::Tensor>>()), ConfigError,
               "the dataset is a null pointer");
}

TEST(DataLoader, ReadsALibTorchDatasetAsItsExample) {
  DataLoader loader(Pairs(5), {.batch_size = 2});
  static_assert(std::is_same_v<decltype(loader)::BatchType, torch::data::Example<>>);
  Indices targets;
  for (auto& batch : loader) {
    EXPECT_EQ(batch.data.size(1), 2);
    EXPECT_EQ(batch.data.size(0), batch.target.size(0));
    for (const int64_t t : values(batch.target)) targets.push_back(t);
  }
  EXPECT_EQ(targets, range(0, 5));
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(loader.total_dataset_length(), 5);
  EXPECT_EQ(loader.total_batch_size(), 2);
  EXPECT_EQ(loader.remainder(), 1);
}

TEST(DataLoader, TakesMappedBatchesAsTheyAre) {
  DataLoader loader(Pairs(5).map(torch::data::transforms::Stack<>()), {.batch_size = 2});
  static_assert(std::is_same_v<decltype(loader)::BatchType, torch::data::Example<>>);
  Indices targets;
  for (auto& batch : loader)
    for (const int64_t t : values(batch.target)) targets.push_back(t);
  EXPECT_EQ(targets, range(0, 5));
}

TEST(DataLoader, ReadsTensorDatasets) {
  DataLoader loader(torch::data::datasets::TensorDataset(torch::arange(6).view({3, 2})),
                    {.batch_size = 2});
  std::vector<Indices> seen;
  for (auto& batch : loader) seen.push_back(values(batch.data));
  EXPECT_THAT(seen, ElementsAre(Indices{0, 1, 2, 3}, Indices{4, 5}));
}

// A std::vector<bool> has no elements to point to.
TEST(DataLoader, ReadsTruthValuesFromEverySource) {
  struct Even {
    bool get(size_t index) const { return index % 2 == 0; }
    size_t size() const { return 5; }
  };
  const auto expect = [](auto&& loader) {
    EXPECT_THAT(batches_of(loader), ElementsAre(Indices{1, 0}, Indices{1, 0}, Indices{1}));
  };
  const DataLoaderOptions options{.batch_size = 2, .even_batches = false};
  expect(DataLoader(std::vector<bool>{true, false, true, false, true}, options));
  expect(DataLoader(Even(), options));
  int64_t i = 0;
  expect(DataLoader([&]() { return i < 5 ? std::optional(i++ % 2 == 0) : std::nullopt; }, options));
  EXPECT_EQ(collate(std::vector<bool>{false, true}).scalar_type(), at::kBool);
}

TEST(DataLoader, ReadsVectorsAndOtherSequences) {
  DataLoader vector(std::vector<float>{1, 2, 3}, {.batch_size = 2, .even_batches = false});
  EXPECT_THAT(batches_of(vector), ElementsAre(Indices{1, 2}, Indices{3}));
  DataLoader deque(std::deque<int64_t>{4, 5}, {.batch_size = 2});
  EXPECT_THAT(batches_of(deque), ElementsAre(Indices{4, 5}));
  DataLoader examples(std::vector<torch::data::Example<>>(3, {torch::ones(2), torch::ones({})}),
                      {.batch_size = 3});
  for (auto& batch : examples) EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{3, 2}));
}

struct NotCopyable {
  NotCopyable() = default;
  NotCopyable(NotCopyable&&) = default;
  NotCopyable(const NotCopyable&) = delete;
  int64_t get(size_t index) { return static_cast<int64_t>(index); }
  size_t size() const { return 4; }
};

TEST(DataLoader, SharesADatasetGivenByPointer) {
  DataLoader loader(std::make_shared<NotCopyable>(), {.batch_size = 2, .num_workers = 3});
  EXPECT_THAT(batches_of(loader), ElementsAre(Indices{0, 1}, Indices{2, 3}));
}

TEST(DataLoader, RefusesManyWorkersOnADatasetThatCannotBeShared) {
  DataLoader one(NotCopyable(), {.batch_size = 2, .num_workers = 1});
  EXPECT_EQ(batches_of(one).size(), 2U);
  DataLoader two(NotCopyable(), {.batch_size = 2, .num_workers = 2});
  EXPECT_ERROR(batches_of(two), ConfigError, "can neither be copied nor read as const");
}

TEST(DataLoader, HasNoBatchesOfAnEmptyDataset) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Numbers{0}, {.batch_size = 2, .shuffle = true, .num_workers = workers});
    EXPECT_THAT(batches_of(loader), IsEmpty());
    EXPECT_EQ(loader.size(), 0);
    DataLoader short_one(Numbers{1}, {.batch_size = 2, .drop_last = true, .num_workers = workers});
    EXPECT_THAT(batches_of(short_one), IsEmpty());
  }
}

TEST(DataLoader, KnowsTheRealRowsAndTheEndOfEachBatch) {
  DataLoader loader(Numbers{5}, {.batch_size = 2});
  std::vector<std::pair<int64_t, bool>> seen;
  for (int pass = 0; pass < 2; ++pass)
    for ([[maybe_unused]] auto& batch : loader)
      seen.emplace_back(loader.real_size(), loader.at_end());
  using Pair = std::pair<int64_t, bool>;
  EXPECT_THAT(seen, ElementsAre(Pair{2, false}, Pair{2, false}, Pair{1, true}, Pair{2, false},
                                Pair{2, false}, Pair{1, true}));
  EXPECT_ERROR(loader.real_size(), Error, "no batch is in hand");
  EXPECT_ERROR(loader.at_end(), Error, "no batch is in hand");
  EXPECT_FALSE(loader.status()->active);
}

TEST(DataLoader, ShufflesAnewEachEpochAndReproducibly) {
  const DataLoaderOptions options = {.batch_size = 4, .shuffle = true, .seed = 5};
  DataLoader first(Numbers{16}, options);
  DataLoader second(Numbers{16}, options);
  const auto epoch0 = batches_of(first);
  const auto epoch1 = batches_of(first);
  EXPECT_NE(epoch0, epoch1);
  const Indices order = joined(epoch0);
  EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 16U);
  EXPECT_EQ(batches_of(second), epoch0);
  EXPECT_EQ(second.epoch(), 1U);
  second.set_epoch(0);
  EXPECT_EQ(batches_of(second), epoch0);
  EXPECT_EQ(batches_of(second), epoch1);
}

TEST(DataLoader, TakesItsSeedFromLibTorchByDefault) {
  const auto order = [](uint64_t seed) {
    torch::manual_seed(seed);
    DataLoader loader(Numbers{32}, {.batch_size = 32, .shuffle = true});
    return batches_of(loader);
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(DataLoader, TellsTheDatasetItsEpoch) {
  struct Epochs : Numbers {
    std::shared_ptr<std::vector<uint64_t>> seen = std::make_shared<std::vector<uint64_t>>();
    void set_epoch(uint64_t epoch) { seen->push_back(epoch); }
  };
  Epochs dataset{{2}};
  const auto seen = dataset.seen;
  DataLoader loader(std::move(dataset), {.batch_size = 2});
  batches_of(loader);
  batches_of(loader);
  loader.set_epoch(7);
  batches_of(loader);
  EXPECT_THAT(*seen, ElementsAre(0, 1, 7));
}

TEST(DataLoader, CanBeLeftAtAnyPointAndStartsAfresh) {
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(Numbers{20}, {.batch_size = 2, .num_workers = workers});
    for (int stop = 0; stop < 11; ++stop) {
      int seen = 0;
      for ([[maybe_unused]] auto& batch : loader)
        if (seen++ == stop) break;
      EXPECT_FALSE(loader.status()->active);
      EXPECT_EQ(joined(batches_of(loader)), range(0, 20)) << workers << " workers, " << stop;
    }
  }
}

TEST(DataLoader, MayBeNestedInAnotherAndInItself) {
  DataLoader outer(Numbers{4}, {.batch_size = 2, .num_workers = 2});
  DataLoader inner(Numbers{3}, {.batch_size = 2});
  int rounds = 0;
  for (auto& batch : outer) {
    const Indices before = values(batch);
    const bool at_end = outer.at_end();
    EXPECT_EQ(batches_of(inner).size(), 2U);
    EXPECT_EQ(batches_of(outer).size(), 2U);
    EXPECT_EQ(outer.at_end(), at_end);
    EXPECT_EQ(values(batch), before);
    ++rounds;
  }
  EXPECT_EQ(rounds, 2);
}

TEST(DataLoader, ShowsWhichOfTwoPassesIsInner) {
  DataLoader outer(Numbers{2}, {.batch_size = 2});
  DataLoader inner(Numbers{2}, {.batch_size = 2});
  for ([[maybe_unused]] auto& a : outer)
    for ([[maybe_unused]] auto& b : inner) {
      EXPECT_TRUE(outer.status()->active);
      EXPECT_GT(inner.status()->started, outer.status()->started);
    }
}

TEST(DataLoader, OutlivesItsMoveAndItsOwnDestruction) {
  auto loader = std::make_unique<DataLoader<at::Tensor>>(
      Numbers{6}, DataLoaderOptions{.batch_size = 2, .num_workers = 2});
  auto status = loader->status();
  auto it = loader->begin();
  auto moved = std::make_unique<DataLoader<at::Tensor>>(std::move(*loader));
  loader.reset();
  moved.reset();
  EXPECT_EQ(values(*++it), (Indices{2, 3}));
  EXPECT_TRUE(status->active);
  it = {};
  EXPECT_FALSE(status->active);
}

TEST(DataLoader, TakesTheOrderOfASampler) {
  DataLoader loader(Numbers{5}, {.batch_size = 2, .sampler = [](uint64_t epoch) {
                                   return epoch == 0 ? Indices{4, 2, 0} : Indices{1};
                                 }});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_THAT(batches_of(loader), ElementsAre(Indices{4, 2}, Indices{0}));
  EXPECT_EQ(loader.size(), 1);
  EXPECT_THAT(batches_of(loader), ElementsAre(Indices{1}));
  DataLoader wrong(Numbers{5}, {.sampler = [](uint64_t) { return Indices{5}; }});
  EXPECT_ERROR(batches_of(wrong), ConfigError, "the option sampler gave index 5; allowed: 0 to 4");
}

TEST(DataLoader, TakesTheBatchesOfABatchSampler) {
  const auto batches = [](uint64_t) { return std::vector<Indices>{{0}, {2, 1}, {3, 4, 4}}; };
  DataLoader loader(Numbers{5}, {.batch_sampler = batches});
  EXPECT_THAT(batches_of(loader), ElementsAre(Indices{0}, Indices{2, 1}, Indices{3, 4, 4}));
  EXPECT_EQ(loader.size(), 3);
  DataLoader empty(Numbers{5},
                   {.batch_sampler = [](uint64_t) { return std::vector<Indices>{{}}; }});
  EXPECT_ERROR(batches_of(empty), ConfigError, "empty batch");
}

TEST(DataLoader, CollatesWithAFunctionOfTheUser) {
  DataLoader loader(Numbers{4}, {.batch_size = 2},
                    [](std::vector<int64_t> samples) { return samples[0] + samples[1]; });
  std::vector<int64_t> sums;
  for (auto& sum : loader) sums.push_back(sum);
  EXPECT_THAT(sums, ElementsAre(1, 5));
  DataLoader list(Numbers{4}, {.batch_size = 2}, ListCollate());
  for (auto& batch : list) EXPECT_EQ(batch.size(), 2U);
}

TEST(DataLoader, NamesTheFieldOfRaggedSamplesAndPadsOnDemand) {
  using Sample = torch::data::Example<>;
  const std::vector<Sample> samples = {{torch::ones(2), torch::ones({})},
                                       {torch::ones(3), torch::ones({})}};
  DataLoader plain(samples, {.batch_size = 2});
  EXPECT_ERROR(
      [&] {
        for (auto& b : plain) (void)b;
      }(),
      std::invalid_argument,
      "field data: sample 0 of the batch has shape [2] and sample 1 has [3]");
  DataLoader padded(samples, {.batch_size = 2}, PadCollate{.value = -1});
  for (auto& batch : padded) EXPECT_THAT(values(batch.data), ElementsAre(1, 1, -1, 1, 1, 1));
}

TEST(DataLoader, LeavesPinningOutWithoutAnAccelerator) {
  if (at::hasCUDA()) GTEST_SKIP();
  DataLoader loader(Numbers{4}, {.batch_size = 2, .pin_memory = true});
  EXPECT_EQ(joined(batches_of(loader)), range(0, 4));
}

TEST(DataLoader, SkipsTheFirstBatchesOfOnePass) {
  DataLoader loader(Numbers{16}, {.batch_size = 4});
  std::vector<Indices> seen;
  for (auto& batch : skip_first_batches(loader, 2)) seen.push_back(values(batch));
  EXPECT_THAT(seen, ElementsAre(range(8, 12), range(12, 16)));
  EXPECT_EQ(loader.epoch(), 1U);
  EXPECT_EQ(batches_of(loader).size(), 4U);
  loader.skip_batches(9);
  EXPECT_THAT(batches_of(loader), IsEmpty());
  EXPECT_ERROR(loader.skip_batches(-1), ConfigError, "skip_batches of -1");
}

TEST(DataLoader, YieldsAsManyBatchesAsItsSizeSays) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    DataLoader loader(Numbers{random() % 50}, {.batch_size = 1 + static_cast<int64_t>(random() % 7),
                                               .shuffle = random() % 2 == 0,
                                               .drop_last = random() % 2 == 0,
                                               .even_batches = random() % 2 == 0});
    ASSERT_EQ(static_cast<int64_t>(batches_of(loader).size()), loader.size());
  }
}

template <class Dataset>
void refused(Dataset dataset, DataLoaderOptions options, const char* text) {
  EXPECT_ERROR(DataLoader(std::move(dataset), std::move(options)), ConfigError, text);
}

struct Unsized {
  int64_t get(size_t) const { return 0; }
  std::optional<size_t> size() const { return std::nullopt; }
};

TEST(DataLoader, RefusesOptionsThatItCannotHonour) {
  const auto order = [](uint64_t) { return Indices{0}; };
  const auto batches = [](uint64_t) { return std::vector<Indices>{{0}}; };
  refused(Numbers{1}, {.batch_size = 0}, "batch_size is 0; allowed: 1 or more");
  refused(Numbers{1}, {.num_workers = -1}, "num_workers is -1");
  refused(Numbers{1}, {.prefetch_factor = 0}, "prefetch_factor is 0");
  refused(Numbers{1}, {.timeout = std::chrono::milliseconds(-1)}, "timeout is -1 ms");
  refused(Numbers{1}, {.timeout = std::chrono::milliseconds(5)}, "set num_workers to 1 or more");
  refused(Numbers{1}, {.shuffle = true, .sampler = order}, "both sampler and shuffle");
  refused(Numbers{1}, {.batch_size = 2, .batch_sampler = batches}, "batch_sampler is set together");
  refused(Numbers{1}, {.split_batches = true, .batch_sampler = batches},
          "split_batches is set with");
  refused(Counter{1}, {.shuffle = true}, "shuffle in the stream");
  refused(Unsized(), {}, "its size() is empty");
}

}  // namespace
}  // namespace drivetrain
