// SPDX-License-Identifier: Apache-2.0
// Threads that read ahead: order, random numbers, errors, time limits.
#include <ATen/core/dispatch/Dispatcher.h>
#include <drivetrain/data.h>
#include <drivetrain/hardware.h>
#include <gmock/gmock.h>

#include <atomic>
#include <set>
#include <thread>

#include "data/datasets.h"
#include "expect_error.h"

namespace drivetrain {
namespace {

using std::chrono::milliseconds;

void sleep(int64_t ms) { std::this_thread::sleep_for(milliseconds(ms)); }

// Samples that take unequal time.
struct Uneven : Numbers {
  int64_t get(size_t index) const {
    sleep(index % 4 == 0 ? 3 : 0);
    return static_cast<int64_t>(index);
  }
};

TEST(Workers, DeliverTheSameBatchesInTheSameOrder) {
  std::vector<std::vector<Indices>> seen;
  for (const int workers : {0, 1, 2, 8}) {
    DataLoader loader(Uneven{{41}},
                      {.batch_size = 3, .shuffle = true, .num_workers = workers, .seed = 1});
    batches_of(loader);
    seen.push_back(batches_of(loader));
  }
  for (const auto& batches : seen) EXPECT_EQ(batches, seen[0]);
}

// Every way of drawing that an augmentation may use.
struct Augmented : torch::data::Dataset<Augmented> {
  torch::data::Example<> get(size_t index) override {
    sleep(static_cast<int64_t>(index % 3));
    auto image = torch::dropout(torch::ones({8}), 0.5, true) + torch::randn({8}) + torch::rand({1});
    image.normal_(0, 1).add_(torch::randint(1000, {8}));
    image.add_(torch::randperm(8)).add_(torch::rand({8}, sample_generator()));
    return {image, torch::multinomial(torch::ones({50}), 1)};
  }
  std::optional<size_t> size() const override { return 24; }
};

std::vector<at::Tensor> images_of(int workers, int passes, uint64_t seed = 4, bool shuffle = true) {
  DataLoader loader(Augmented(),
                    {.batch_size = 5, .shuffle = shuffle, .num_workers = workers, .seed = seed});
  std::vector<at::Tensor> out;
  for (int i = 0; i < passes; ++i) {
    out.clear();
    for (auto& batch : loader) out.push_back(torch::cat({batch.data, batch.target}, 1));
  }
  return out;
}

TEST(Workers, DrawTheSameRandomNumbersHoweverMany) {
  const auto alone = images_of(0, 2);
  for (const int workers : {1, 4, 8}) {
    const auto images = images_of(workers, 2);
    ASSERT_EQ(images.size(), alone.size());
    for (size_t i = 0; i < images.size(); ++i) EXPECT_TRUE(torch::equal(images[i], alone[i]));
  }
}

TEST(Workers, DrawOtherNumbersForOtherSeedsEpochsAndSamples) {
  const auto first = images_of(0, 1, 4, false);
  EXPECT_FALSE(torch::equal(first[0], images_of(0, 2, 4, false)[0]));
  EXPECT_FALSE(torch::equal(first[0], images_of(0, 1, 5, false)[0]));
  EXPECT_FALSE(torch::equal(first[0][0], first[0][1]));
}

TEST(Workers, DrawTheSameNumbersForASampleWhereverItComes) {
  DataLoader loader(Augmented(),
                    {.batch_size = 3, .sampler = [](uint64_t) { return Indices{3, 1, 3}; }});
  for (auto& batch : loader) {
    EXPECT_TRUE(torch::equal(batch.data[0], batch.data[2]));
    EXPECT_FALSE(torch::equal(batch.data[0], batch.data[1]));
  }
}

TEST(Workers, LeaveTheGlobalGeneratorAlone) {
  torch::manual_seed(3);
  const auto expected = torch::rand({4});
  torch::manual_seed(3);
  images_of(0, 1);
  images_of(2, 1);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(Workers, GiveCollateFunctionsRandomNumbersToo) {
  const auto draw = [](int workers) {
    DataLoader loader(Numbers{8}, {.batch_size = 4, .num_workers = workers, .seed = 2},
                      [](std::vector<int64_t>) { return torch::rand({2}); });
    std::vector<at::Tensor> out;
    for (auto& batch : loader) out.push_back(batch);
    return torch::stack(out);
  };
  EXPECT_TRUE(torch::equal(draw(0), draw(3)));
}

TEST(SampleGenerator, IsRefusedOutsideOfReading) {
  EXPECT_ERROR(sample_generator(), Error, "where no sample is being read");
}

// An operation that is new in another LibTorch would draw from the global generator.
TEST(SampleGenerator, ServesEveryOperationOfLibTorchThatTakesOne) {
  auto& dispatcher = c10::Dispatcher::singleton();
  int found = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0) continue;
    for (const auto& argument : op->schema().arguments()) {
      if (argument.type()->str() != "Generator?") continue;
      ++found;
      EXPECT_TRUE(op->hasKernelForDispatchKey(c10::DispatchKey::DeferredInit)) << name;
    }
  }
  EXPECT_GT(found, 60);
}

struct Failing : Numbers {
  int64_t get(size_t index) const {
    if (index == 7) throw std::out_of_range("no such file");
    return static_cast<int64_t>(index);
  }
};

TEST(Workers, ThrowTheirErrorWhereTheBatchWouldBe) {
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(Failing{{12}}, {.batch_size = 2, .num_workers = workers});
    std::vector<Indices> seen;
    try {
      for (auto& batch : loader) seen.push_back(values(batch));
      ADD_FAILURE() << "no error";
    } catch (const SampleError& error) {
      EXPECT_EQ(error.index(), 7);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("sample 7 could not be read: no such file"));
      EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
    }
    EXPECT_EQ(joined(seen), range(0, 6)) << workers;
    EXPECT_FALSE(loader.status()->active);
    // The next pass is whole up to the same sample.
    EXPECT_ERROR(batches_of(loader), SampleError, "sample 7");
  }
}

TEST(Workers, NameASampleThatThrowsNoException) {
  struct Throwing : Numbers {
    int64_t get(size_t) const { throw 5; }
  };
  DataLoader loader(Throwing{{2}}, {.num_workers = 1});
  EXPECT_ERROR(batches_of(loader), SampleError, "no std::exception");
}

TEST(Workers, NameTheSampleThatHangs) {
  struct Hanging : Numbers {
    int64_t get(size_t index) const {
      if (index == 5) sleep(600);
      return static_cast<int64_t>(index);
    }
  };
  DataLoader loader(Hanging{{12}},
                    {.batch_size = 2, .num_workers = 2, .timeout = milliseconds(100)});
  std::vector<Indices> seen;
  const auto begin = std::chrono::steady_clock::now();
  try {
    for (auto& batch : loader) seen.push_back(values(batch));
    ADD_FAILURE() << "no error";
  } catch (const SampleError& error) {
    EXPECT_EQ(error.index(), 5);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("sample 5 has taken longer than 100 ms"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(500));
  EXPECT_EQ(joined(seen), range(0, 4));
  sleep(700);  // the thread left behind ends before the test does
}

TEST(Workers, ReadAheadNoFurtherThanTold) {
  struct Counted : Numbers {
    std::shared_ptr<std::atomic<int>> reads = std::make_shared<std::atomic<int>>(0);
    int64_t get(size_t index) const {
      ++*reads;
      return static_cast<int64_t>(index);
    }
  };
  Counted dataset{{100}};
  const auto reads = dataset.reads;
  DataLoader loader(std::move(dataset), {.num_workers = 2, .prefetch_factor = 3});
  auto it = loader.begin();
  sleep(50);
  EXPECT_EQ(*reads, 1 + 6);
  ++it;
  sleep(50);
  EXPECT_EQ(*reads, 2 + 6);
}

TEST(Workers, SeeTheLoopsOwnGradMode) {
  struct Modes : Numbers {
    int64_t get(size_t) const { return at::GradMode::is_enabled() ? 1 : 0; }
  };
  DataLoader loader(Modes{{2}}, {.num_workers = 1});
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(joined(batches_of(loader)), (Indices{0, 0}));
}

TEST(Workers, ComputeInTheLoopsOwnPrecision) {
  struct Products : Numbers {
    int64_t get(size_t) const {
      return static_cast<int64_t>(torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type());
    }
  };
  const auto types_with = [](int workers) {
    DataLoader loader(Products{{4}}, {.num_workers = workers});
    return batches_of(loader);
  };
  const auto all = [](at::ScalarType type) {
    return std::vector<Indices>(4, Indices{static_cast<int64_t>(type)});
  };
  for (const int workers : {0, 2})
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      {
        const Autocast scope(c10::kCPU, true, type);
        EXPECT_EQ(types_with(workers), all(type));
      }
      EXPECT_EQ(types_with(workers), all(at::kFloat));
    }
}

TEST(Workers, AreLeftSafelyInTheMiddleOfReading) {
  for (int i = 0; i < 40; ++i) {
    DataLoader loader(Uneven{{64}}, {.batch_size = 4, .num_workers = 4});
    auto it = loader.begin();
    if (i % 2 == 0) ++it;
  }
}

TEST(Workers, CopyADatasetThatIsNotReadAsConst) {
  struct Scratch {
    std::vector<int64_t> scratch = {};
    int64_t get(size_t index) {
      scratch.assign(100, static_cast<int64_t>(index));
      sleep(index % 2);
      return std::set<int64_t>(scratch.begin(), scratch.end()).size() == 1 ? scratch[50] : -1;
    }
    size_t size() const { return 40; }
  };
  DataLoader loader(Scratch(), {.batch_size = 2, .num_workers = 4});
  EXPECT_EQ(joined(batches_of(loader)), range(0, 40));
}

}  // namespace
}  // namespace drivetrain
