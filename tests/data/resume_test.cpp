// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/data.h>
#include <gmock/gmock.h>

#include "data/datasets.h"
#include "expect_error.h"

namespace drivetrain {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kLength = 23;

DataLoader<at::Tensor> shuffled(int workers = 0) {
  return DataLoader(Numbers{kLength},
                    {.batch_size = 4, .shuffle = true, .num_workers = workers, .seed = 8});
}

// The state in the body of the loop, after `count` batches of epoch 1.
DataLoaderState state_after(int count, int workers) {
  auto loader = shuffled(workers);
  batches_of(loader);
  DataLoaderState state = loader.state_dict();
  int seen = 0;
  for ([[maybe_unused]] auto& batch : loader) {
    if (seen++ == count) break;
    state = loader.state_dict();
  }
  return state;
}

TEST(Resume, GivesExactlyTheBatchesThatWereToCome) {
  auto reference = shuffled();
  batches_of(reference);
  const auto epoch1 = batches_of(reference);
  const auto epoch2 = batches_of(reference);
  for (const int workers : {0, 3})
    for (int count = 0; count <= 6; ++count) {
      auto loader = shuffled(workers);
      loader.load_state_dict(state_after(count, workers));
      EXPECT_EQ(loader.epoch(), 1U);
      EXPECT_EQ(batches_of(loader), std::vector<Indices>(epoch1.begin() + count, epoch1.end()));
      EXPECT_EQ(batches_of(loader), epoch2);
    }
}

TEST(Resume, TakesTheSeedOfTheState) {
  auto reference = shuffled();
  const auto epoch0 = batches_of(reference);
  DataLoader other(Numbers{kLength}, {.batch_size = 4, .shuffle = true, .seed = 1});
  other.load_state_dict({.seed = 8, .epoch = 0, .samples_done = 8, .length = kLength});
  EXPECT_EQ(batches_of(other), std::vector<Indices>(epoch0.begin() + 2, epoch0.end()));
}

TEST(Resume, StateOfAPassThatWasLeftIsWhereItWasLeft) {
  auto loader = shuffled();
  int seen = 0;
  for ([[maybe_unused]] auto& batch : loader)
    if (++seen == 2) break;
  EXPECT_EQ(loader.state_dict().epoch, 0U);
  EXPECT_EQ(loader.state_dict().samples_done, 8);
  EXPECT_EQ(loader.epoch(), 1U);
  batches_of(loader);
  EXPECT_EQ(loader.state_dict().epoch, 2U);
  EXPECT_EQ(loader.state_dict().samples_done, 0);
}

TEST(Resume, SurvivesSettingTheSameEpochOnly) {
  auto loader = shuffled();
  loader.load_state_dict({.seed = 8, .epoch = 3, .samples_done = 20, .length = kLength});
  loader.set_epoch(3);
  EXPECT_EQ(batches_of(loader).size(), 1U);
  loader.load_state_dict({.seed = 8, .epoch = 3, .samples_done = 20, .length = kLength});
  loader.set_epoch(4);
  EXPECT_EQ(batches_of(loader).size(), 6U);
}

TEST(Resume, AddsSkippedBatchesToTheState) {
  auto loader = shuffled();
  loader.load_state_dict({.seed = 8, .epoch = 0, .samples_done = 8, .length = kLength});
  loader.skip_batches(2);
  EXPECT_EQ(batches_of(loader).size(), 2U);
}

TEST(Resume, OfABatchSamplerCountsBatches) {
  const auto batches = [](uint64_t) { return std::vector<Indices>{{0}, {2, 1}, {3, 4}}; };
  DataLoader loader(Numbers{5}, {.batch_sampler = batches});
  for ([[maybe_unused]] auto& batch : loader) break;
  const auto state = loader.state_dict();
  EXPECT_EQ(state.samples_done, 1);
  DataLoader resumed(Numbers{5}, {.batch_sampler = batches});
  resumed.load_state_dict(state);
  EXPECT_THAT(batches_of(resumed), ElementsAre(Indices{2, 1}, Indices{3, 4}));
}

TEST(Resume, RefusesStatesOfOtherDatasets) {
  auto loader = shuffled();
  EXPECT_ERROR(loader.load_state_dict({.length = 22}), ConfigError,
               "the state is of a dataset of 22 samples, and this one has 23");
  EXPECT_ERROR(loader.load_state_dict({.samples_done = 24, .length = 23}), ConfigError,
               "24 samples done; allowed: 0 to 23");
  EXPECT_ERROR(loader.load_state_dict({.samples_done = -1}), ConfigError, "-1 samples done");
}

TEST(Stream, IsReadAnewInEachPass) {
  DataLoader loader(Counter{5}, {.batch_size = 2});
  for (int pass = 0; pass < 2; ++pass)
    EXPECT_THAT(batches_of(loader), ElementsAre(Indices{0, 1}, Indices{2, 3}, Indices{4}));
  EXPECT_FALSE(loader.has_size());
  EXPECT_ERROR(loader.size(), ConfigError, "a stream that has no size()");
  EXPECT_EQ(loader.remainder(), std::nullopt);
}

TEST(Stream, MayBeACallable) {
  int64_t next = 0;
  const auto stream = [next]() mutable {
    return next < 3 ? std::optional(torch::tensor(next++)) : std::nullopt;
  };
  DataLoader loader(stream, {.batch_size = 2, .num_workers = 2, .even_batches = false});
  EXPECT_THAT(batches_of(loader), ElementsAre(Indices{0, 1}, Indices{2}));
  // Without reset it goes on where it stopped: at its end.
  EXPECT_THAT(batches_of(loader), IsEmpty());
}

TEST(Stream, MayBeEndless) {
  struct Endless {
    int64_t value = 0;
    std::optional<int64_t> next() { return value++; }
    void set_epoch(uint64_t epoch) { value = static_cast<int64_t>(100 * epoch); }
  };
  DataLoader loader(Endless(), {.batch_size = 2, .num_workers = 2});
  for (const int64_t start : {0, 100}) {
    std::vector<Indices> seen;
    for (auto& batch : loader) {
      seen.push_back(values(batch));
      if (seen.size() == 3) break;
    }
    EXPECT_EQ(joined(seen), range(start, start + 6));
  }
}

TEST(Stream, WithASizeKnowsItsBatches) {
  struct Sized : Counter {
    size_t size() const { return static_cast<size_t>(count); }
  };
  DataLoader loader(Sized{{5}}, {.batch_size = 2});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(loader.remainder(), 1);
}

TEST(Stream, ErrorsComeAfterTheBatchesBeforeThem) {
  struct Failing : Counter {
    std::optional<int64_t> next() {
      if (next_value == 4) throw std::runtime_error("broken record");
      return Counter::next();
    }
  };
  for (const int workers : {0, 3}) {
    DataLoader loader(Failing{{9}}, {.batch_size = 2, .num_workers = workers});
    std::vector<Indices> seen;
    EXPECT_ERROR(
        [&] {
          for (auto& b : loader) seen.push_back(values(b));
        }(),
        SampleError, "sample 4 could not be read: broken record");
    EXPECT_EQ(joined(seen), range(0, 4));
  }
}

// torch::data's own kind of stream: batches of samples, until it is empty.
struct Records
    : torch::data::datasets::StatefulDataset<Records, std::vector<torch::data::Example<>>> {
  int64_t next_value = 0;
  std::optional<std::vector<torch::data::Example<>>> get_batch(size_t count) override {
    std::vector<torch::data::Example<>> batch;
    for (; count > 0 && next_value < 5; --count, ++next_value)
      batch.emplace_back(torch::tensor(next_value), torch::tensor(next_value));
    if (batch.empty()) return std::nullopt;
    return batch;
  }
  std::optional<size_t> size() const override { return std::nullopt; }
  void reset() override { next_value = 0; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
};

template <class Loader>
Indices targets_of(Loader& loader) {
  Indices out;
  for (auto& batch : loader)
    for (const int64_t t : values(batch.target)) out.push_back(t);
  return out;
}

TEST(Stream, MayBeAStatefulLibTorchDataset) {
  DataLoader loader(Records(), {.batch_size = 2, .even_batches = false});
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(targets_of(loader), range(0, 5));
}

TEST(TorchLoader, GivesItsDatasetAndOptions) {
  DataLoader loader(torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
                        Pairs(7), torch::data::DataLoaderOptions().batch_size(3).drop_last(true)),
                    {.num_workers = 2});
  static_assert(std::is_same_v<decltype(loader)::BatchType, torch::data::Example<>>);
  EXPECT_EQ(targets_of(loader), range(0, 6));
  EXPECT_EQ(loader.options().batch_size, 3);
  EXPECT_FALSE(loader.options().shuffle);
}

TEST(TorchLoader, IsShuffledByOurSamplerWhereItWasByItsOwn) {
  DataLoader loader(
      torch::data::make_data_loader(Pairs(40).map(torch::data::transforms::Stack<>()), 10),
      {.seed = 3});
  Indices first = targets_of(loader);
  EXPECT_NE(first, targets_of(loader));
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, range(0, 40));
}

TEST(TorchLoader, OfAStatefulDatasetIsAStream) {
  DataLoader loader(
      torch::data::make_data_loader(Records(), torch::data::DataLoaderOptions().batch_size(2)),
      {.even_batches = false});
  EXPECT_EQ(targets_of(loader), range(0, 5));
}

TEST(TorchLoader, WithWorkersIsRefusedWithTheReason) {
  EXPECT_ERROR(DataLoader(torch::data::make_data_loader(
                   Pairs(7), torch::data::DataLoaderOptions().batch_size(3).workers(2))),
               ConfigError, "has 2 workers, which hold its dataset");
}

}  // namespace
}  // namespace drivetrain
