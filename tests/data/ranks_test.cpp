// SPDX-License-Identifier: Apache-2.0
// Loaders on several ranks: shares, dispatch from rank 0, resuming on another world.
#include "ranks.h"

#include <drivetrain/data.h>
#include <gmock/gmock.h>

#include <map>
#include <random>

#include "data/datasets.h"
#include "expect_error.h"

namespace drivetrain {
namespace {

using ::testing::ElementsAre;

// What each rank saw in one pass: batches, real sizes, the end flags.
struct Seen {
  std::vector<Indices> batches;
  Indices real;
  std::vector<bool> at_end;
  int64_t size = -1;
  bool operator==(const Seen&) const = default;
};

template <class Loader>
Seen see(Loader& loader) {
  Seen seen;
  for (auto& batch : loader) {
    seen.batches.push_back(values(batch));
    seen.real.push_back(loader.real_size());
    seen.at_end.push_back(loader.at_end());
  }
  if (loader.has_size()) seen.size = loader.size();
  return seen;
}

// Runs `body(loader)` on each rank over a fresh copy of the dataset.
template <class Dataset, class Body>
auto on_ranks(int world, const Dataset& dataset, const DataLoaderOptions& options, Body body) {
  std::vector<decltype(body(std::declval<DataLoader<data::BatchOf<Dataset>>&>()))> out(
      static_cast<size_t>(world));
  run_ranks(world, [&](const World& w) {
    DataLoader loader{Dataset(dataset), options};
    loader.attach(w, at::kCPU);
    out[static_cast<size_t>(w.rank())] = body(loader);
  });
  return out;
}

template <class Dataset>
std::vector<Seen> seen_on(int world, const Dataset& dataset, const DataLoaderOptions& options) {
  return on_ranks(world, dataset, options, [](auto& loader) { return see(loader); });
}

TEST(RankLoader, GivesTheSharesOfTheTable) {
  const auto seen = seen_on(3, Numbers{7}, {.batch_size = 2});
  EXPECT_THAT(seen[0].batches, ElementsAre(Indices{0, 1}, Indices{6, 0}));
  EXPECT_THAT(seen[1].batches, ElementsAre(Indices{2, 3}, Indices{1, 2}));
  EXPECT_THAT(seen[2].batches, ElementsAre(Indices{4, 5}, Indices{3, 4}));
  EXPECT_THAT(seen[0].real, ElementsAre(2, 1));
  EXPECT_THAT(seen[2].real, ElementsAre(2, 0));
}

TEST(RankLoader, SplitsBatches) {
  const auto seen =
      seen_on(3, Numbers{10}, {.batch_size = 6, .even_batches = false, .split_batches = true});
  EXPECT_THAT(seen[0].batches, ElementsAre(Indices{0, 1}, Indices{6, 7}));
  EXPECT_THAT(seen[2].batches, ElementsAre(Indices{4, 5}));
  EXPECT_EQ(seen[0].size, 2);
  EXPECT_EQ(seen[2].size, 1);
}

TEST(RankLoader, SharesWholeBatchesOfABatchSampler) {
  const auto batches = [](uint64_t) {
    return std::vector<Indices>{{0}, {1, 2}, {3, 4, 5}, {6}, {7, 8}, {9, 10, 11}, {12}};
  };
  const auto seen = seen_on(3, Numbers{13}, {.batch_sampler = batches});
  EXPECT_THAT(seen[0].batches, ElementsAre(Indices{0}, Indices{6}, Indices{12}));
  EXPECT_THAT(seen[1].batches, ElementsAre(Indices{1, 2}, Indices{7, 8}, Indices{0}));
  EXPECT_THAT(seen[2].batches, ElementsAre(Indices{3, 4, 5}, Indices{9, 10, 11}, Indices{1, 2}));
  EXPECT_THAT(seen[1].real, ElementsAre(2, 2, 0));
}

// Real rows of all ranks, round by round: what a metric would gather.
Indices gathered(const std::vector<Seen>& seen) {
  Indices out;
  for (size_t k = 0; k < seen[0].batches.size(); ++k)
    for (const Seen& rank : seen)
      if (k < rank.batches.size())
        out.insert(out.end(), rank.batches[k].begin(),
                   rank.batches[k].begin() + static_cast<std::ptrdiff_t>(rank.real[k]));
  return out;
}

TEST(RankLoader, ReadDispatchedAndStreamedAllGiveTheSame) {
  std::mt19937 random(5);
  for (const int world : {1, 2, 3, 4, 7})
    for (const int64_t n : {0, 1, world - 1, 2 * world + 1, 23, 24}) {
      DataLoaderOptions options = {.batch_size = 1 + static_cast<int64_t>(random() % 3)};
      options.drop_last = random() % 3 == 0;
      options.even_batches = random() % 2 == 0;
      options.num_workers = static_cast<int>(random() % 3);
      options.dispatch_batches = false;
      const auto sharded = seen_on(world, Numbers{static_cast<size_t>(n)}, options);
      auto streamed = seen_on(world, Counter{n}, options);
      options.dispatch_batches = true;
      const auto dispatched = seen_on(world, Numbers{static_cast<size_t>(n)}, options);
      auto both = seen_on(world, Counter{n}, options);
      for (size_t r = 0; r < sharded.size(); ++r) {
        const std::string what = "n=" + std::to_string(n) + " world=" + std::to_string(world) +
                                 " rank=" + std::to_string(r);
        ASSERT_EQ(static_cast<int64_t>(sharded[r].batches.size()), sharded[r].size) << what;
        streamed[r].size = both[r].size = sharded[r].size;
        EXPECT_EQ(dispatched[r], sharded[r]) << what;
        EXPECT_EQ(streamed[r], sharded[r]) << what;
        EXPECT_EQ(both[r], sharded[r]) << what;
        for (size_t k = 0; k < sharded[r].at_end.size(); ++k)
          EXPECT_EQ(sharded[r].at_end[k], k + 1 == sharded[r].at_end.size());
      }
      if (!options.drop_last) {
        EXPECT_EQ(gathered(sharded), range(0, n));
      }
    }
}

TEST(RankLoader, ShufflesAlikeOnAllRanksWhateverTheirOwnSeed) {
  std::vector<Indices> order(2);
  run_ranks(2, [&](const World& world) {
    // Ranks whose default seeds differ: rank 0's holds.
    static std::mutex mutex;
    std::optional<DataLoader<at::Tensor>> loader;
    {
      std::lock_guard lock(mutex);
      torch::manual_seed(10 + world.rank());
      loader.emplace(Numbers{8}, DataLoaderOptions{.batch_size = 2, .shuffle = true});
    }
    loader->attach(world, at::kCPU);
    order[static_cast<size_t>(world.rank())] = joined(batches_of(*loader));
  });
  Indices all = joined(order);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, range(0, 8));
}

TEST(RankLoader, RefusesLoadersThatDiffer) {
  run_ranks(2, [](const World& world) {
    DataLoader loader(Numbers{8}, {.batch_size = 1 + world.rank()});
    EXPECT_ERROR(loader.attach(world, at::kCPU), ConfigError,
                 "the loaders of rank 0 and rank 1 differ");
  });
  run_ranks(2, [](const World& world) {
    DataLoader loader(Numbers{8}, {.seed = world.rank()});
    EXPECT_ERROR(loader.attach(world, at::kCPU), ConfigError, "seed 1");
  });
  run_ranks(2, [](const World& world) {
    DataLoader loader(Numbers{9}, {.batch_size = 3, .split_batches = true});
    EXPECT_ERROR(loader.attach(world, at::kCPU), ConfigError, "round multiple");
    EXPECT_EQ(loader.size(), 3);
  });
}

TEST(RankLoader, RefusesToAttachDuringAPass) {
  DataLoader loader(Numbers{2});
  for ([[maybe_unused]] auto& batch : loader)
    EXPECT_ERROR(loader.attach(World::single(), at::kCPU), ConfigError,
                 "while a pass is under way");
}

// Ragged samples with parts that are no tensors.
struct Text {
  at::Tensor tokens;
  std::string words;
  std::map<std::string, double> scores;
  std::optional<int> label;
};

struct Texts {
  size_t count;
  Text get(size_t i) const {
    return {torch::full({static_cast<int64_t>(i)}, static_cast<int64_t>(i)),
            std::string(i, 'x'),
            {{"score", 0.5 * static_cast<double>(i)}},
            i % 2 == 0 ? std::nullopt : std::optional(7)};
  }
  size_t size() const { return count; }
};

TEST(Dispatch, SendsRaggedSamplesAndPartsThatAreNoTensors) {
  std::vector<std::vector<size_t>> seen(3);
  run_ranks(3, [&](const World& world) {
    // The other ranks need no data at all.
    DataLoader loader(Texts{world.is_main() ? 8UL : 0UL},
                      {.batch_size = 2, .even_batches = false, .dispatch_batches = true},
                      ListCollate());
    loader.attach(world, at::kCPU);
    EXPECT_EQ(loader.total_dataset_length(), 8);
    for (auto& batch : loader)
      for (const Text& text : batch) {
        const size_t i = text.words.size();
        EXPECT_EQ(text.tokens.numel(), static_cast<int64_t>(i));
        EXPECT_EQ(text.scores.at("score"), 0.5 * static_cast<double>(i));
        EXPECT_EQ(text.label.has_value(), i % 2 == 1);
        seen[static_cast<size_t>(world.rank())].push_back(i);
      }
  });
  EXPECT_THAT(seen[0], ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(seen[1], ElementsAre(2, 3));
  EXPECT_THAT(seen[2], ElementsAre(4, 5));
}

struct FailingStream : Counter {
  std::optional<int64_t> next() {
    if (next_value == 8) throw std::runtime_error("the network is gone");
    return Counter::next();
  }
};

TEST(Dispatch, TellsEveryRankOfAnErrorOnRankZero) {
  for (const int workers : {0, 2}) {
    std::vector<std::string> errors(3);
    std::vector<size_t> counts(3);
    run_ranks(3, [&](const World& world) {
      const auto rank = static_cast<size_t>(world.rank());
      DataLoader loader(FailingStream{{20}}, {.batch_size = 2, .num_workers = workers});
      loader.attach(world, at::kCPU);
      try {
        for ([[maybe_unused]] auto& batch : loader) ++counts[rank];
      } catch (const SampleError& error) {
        EXPECT_EQ(error.index(), 8);
        errors[rank] = error.what();
      }
      barrier(world);  // the world is still of use
    });
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_THAT(errors[r],
                  ::testing::HasSubstr("sample 8 could not be read: the network is gone"));
      EXPECT_EQ(counts[r], 1U);
    }
  }
}

TEST(Dispatch, TellsEveryRankOfAWrongSampler) {
  run_ranks(2, [](const World& world) {
    DataLoader loader(
        Numbers{world.is_main() ? 4UL : 0UL},
        {.dispatch_batches = true, .sampler = [](uint64_t) { return Indices{0, 9}; }});
    loader.attach(world, at::kCPU);
    EXPECT_ERROR(batches_of(loader), Error, "the option sampler gave index 9");
    barrier(world);
  });
}

TEST(Dispatch, CanBeLeftEarlyByAllRanks) {
  run_ranks(2, [](const World& world) {
    DataLoader loader(Counter{20}, {.batch_size = 2, .num_workers = 1});
    loader.attach(world, at::kCPU);
    for ([[maybe_unused]] auto& batch : loader) break;
    EXPECT_EQ(batches_of(loader).size(), 5U);
  });
}

struct Opaque {
  std::shared_ptr<int> pointer;
};

TEST(Dispatch, RefusesBatchesThatCannotBeSent) {
  run_ranks(2, [](const World& world) {
    DataLoader loader(std::vector<Opaque>(4), {.dispatch_batches = true}, ListCollate());
    EXPECT_ERROR(loader.attach(world, at::kCPU), ConfigError, "cannot be sent to other ranks");
    // A stream of them is read by every rank instead.
    int64_t next = 0;
    DataLoader stream(
        [next]() mutable { return next++ < 4 ? std::optional(Opaque()) : std::nullopt; }, {},
        ListCollate());
    stream.attach(world, at::kCPU);
    int count = 0;
    for ([[maybe_unused]] auto& batch : stream) ++count;
    EXPECT_EQ(count, 2);
  });
}

// Every sample that was read, in the order of rounds and ranks, and the state after k rounds.
struct Part {
  Indices samples;
  DataLoaderState state;
};

template <class Dataset>
Part read_part(int world, const Dataset& dataset, const DataLoaderOptions& options,
               std::optional<DataLoaderState> state, size_t rounds) {
  std::vector<DataLoaderState> states(static_cast<size_t>(world));
  std::vector<Seen> seen = on_ranks(world, dataset, options, [&](auto& loader) {
    if (state) loader.load_state_dict(*state);
    Seen mine;
    for (auto& batch : loader) {
      mine.batches.push_back(values(batch));
      mine.real.push_back(loader.real_size());
      if (mine.batches.size() == rounds) break;
    }
    // Two ranks write the same state into one place: they must agree.
    const DataLoaderState now = loader.state_dict();
    mine.size = now.samples_done + 1000 * static_cast<int64_t>(now.epoch);
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    states[0] = now;
    return mine;
  });
  for (const Seen& rank : seen) EXPECT_EQ(rank.size, seen[0].size);
  return {gathered(seen), states[0]};
}

TEST(Resume, OnAnyWorldReadsTheRestOfTheEpochOnce) {
  const DataLoaderOptions options = {.batch_size = 2, .shuffle = true, .num_workers = 1, .seed = 9};
  const Indices whole = read_part(1, Numbers{29}, options, std::nullopt, 1000).samples;
  for (const int from : {1, 2, 3})
    for (const int to : {1, 2, 4}) {
      const Part head = read_part(from, Numbers{29}, options, std::nullopt, 2);
      const Part tail = read_part(to, Numbers{29}, options, head.state, 1000);
      Indices all = head.samples;
      all.insert(all.end(), tail.samples.begin(), tail.samples.end());
      EXPECT_EQ(all, whole) << from << " to " << to;
      EXPECT_EQ(tail.state.epoch, 1U);
      EXPECT_EQ(tail.state.samples_done, 0);
    }
}

TEST(Resume, OfAStreamReadsItsRest) {
  const Part head = read_part(2, Counter{29}, {.batch_size = 2}, std::nullopt, 3);
  EXPECT_EQ(head.state.samples_done, 12);
  for (const int to : {1, 2, 3, 7})
    EXPECT_EQ(read_part(to, Counter{29}, {.batch_size = 2}, head.state, 1000).samples,
              range(12, 29));
}

}  // namespace
}  // namespace drivetrain
