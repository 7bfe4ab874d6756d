// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "devices.h"
#include "expect_error.h"

namespace drivetrain::sim {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class SimMemory : public ::testing::Test {
 protected:
  SimMemory() {
    accelerator()->set_device(0);
    accelerator()->synchronize();
    accelerator()->empty_cache();
    accelerator()->reset_peak_memory_stats();
  }
  ~SimMemory() override {
    accelerator()->synchronize();
    accelerator()->set_per_process_memory_fraction(1.0);
  }

  static at::Tensor bytes(int64_t count, int index = 0) {
    return torch::empty({count}, torch::dtype(torch::kUInt8).device(at(index)));
  }
  MemoryStats stats() const { return accelerator()->memory_stats(0); }
};

TEST_F(SimMemory, IsCountedRoundedAndRequested) {
  const auto before = stats();
  EXPECT_EQ(before.allocated_bytes.current, 0);
  EXPECT_EQ(before.reserved_bytes.current, 0);
  const auto block = bytes(1000);
  EXPECT_EQ(stats().allocated_bytes.current, 1024);
  EXPECT_EQ(stats().active_bytes.current, 1024);
  EXPECT_EQ(stats().requested_bytes.current, 1000);
  EXPECT_EQ(stats().allocations.current, 1);
  EXPECT_EQ(stats().reserved_bytes.current, 2 * kMiB);
  EXPECT_EQ(stats().inactive_split_bytes.current, 2 * kMiB - 1024);
  EXPECT_EQ(stats().allocated_bytes.allocated - before.allocated_bytes.allocated, 1024);
}

TEST_F(SimMemory, OfZeroBytesCostsNothing) {
  const auto none = bytes(0);
  EXPECT_EQ(stats().allocated_bytes.current, 0);
  EXPECT_EQ(none.device(), at(0));
  EXPECT_EQ(none.cpu().numel(), 0);
}

TEST_F(SimMemory, FreedIsKeptForReuseUntilTheCacheIsEmptied) {
  const void* address = nullptr;
  {
    const auto block = bytes(3 * kMiB);
    address = block.data_ptr();
  }
  EXPECT_EQ(stats().allocated_bytes.current, 0);
  EXPECT_EQ(stats().reserved_bytes.current, 20 * kMiB);
  EXPECT_EQ(bytes(3 * kMiB).data_ptr(), address);
  accelerator()->empty_cache();
  EXPECT_EQ(stats().reserved_bytes.current, 0);
  EXPECT_EQ(accelerator()->available_memory(0), kSettings.memory_bytes);
}

TEST_F(SimMemory, NeighboursFreedAreOneAgain) {
  auto a = bytes(2 * kMiB), b = bytes(2 * kMiB), c = bytes(2 * kMiB);
  const void* first = a.data_ptr();
  EXPECT_EQ(stats().reserved_bytes.current, 20 * kMiB);
  b.reset();
  a.reset();
  c.reset();
  EXPECT_EQ(stats().inactive_split_bytes.current, 0);
  EXPECT_EQ(bytes(9 * kMiB).data_ptr(), first);
  EXPECT_EQ(stats().reserved_bytes.current, 20 * kMiB);
}

TEST_F(SimMemory, PeaksStayUntilReset) {
  bytes(8 * kMiB);
  EXPECT_EQ(accelerator()->max_memory_allocated(), 8 * kMiB);
  const auto small = bytes(kMiB);
  EXPECT_EQ(accelerator()->max_memory_allocated(), 8 * kMiB);
  accelerator()->reset_peak_memory_stats();
  EXPECT_EQ(accelerator()->max_memory_allocated(), kMiB);
}

TEST_F(SimMemory, EndsWithLibTorchsErrorAndAllOfItCanBeHad) {
  const auto all = bytes(kSettings.memory_bytes);
  EXPECT_EQ(accelerator()->available_memory(), 0);
  const int64_t before = stats().num_ooms;
  EXPECT_ERROR(bytes(1), c10::OutOfMemoryError,
               "sim:0 is out of memory. Tried to allocate 1 B. It has a total capacity of 64.0 MiB "
               "of which 0 B is free. Of the memory in use 64.0 MiB is allocated by tensors");
  EXPECT_EQ(stats().num_ooms, before + 1);
  EXPECT_NO_THROW(bytes(kSettings.memory_bytes, 1)) << "another device has its own";
}

TEST_F(SimMemory, TheCacheIsGivenBackBeforeAnAllocationFails) {
  {
    const auto cached = bytes(40 * kMiB);
  }
  EXPECT_EQ(stats().reserved_bytes.current, 40 * kMiB);
  const int64_t retries = stats().num_alloc_retries;
  EXPECT_NO_THROW(bytes(50 * kMiB));
  EXPECT_EQ(stats().num_alloc_retries, retries + 1);
  EXPECT_THROW(bytes(65 * kMiB), c10::OutOfMemoryError);
  EXPECT_NO_THROW(bytes(64 * kMiB)) << "usable after the error";
}

TEST_F(SimMemory, TakesAUsualSegmentOnlyWhereItFits) {
  const auto most = bytes(60 * kMiB);
  EXPECT_NO_THROW(bytes(3 * kMiB));
}

TEST_F(SimMemory, OfAProcessCanBeLimited) {
  accelerator()->set_per_process_memory_fraction(0.25);
  const auto half = bytes(10 * kMiB);
  EXPECT_ERROR(bytes(8 * kMiB), c10::OutOfMemoryError, "This process may use 16.0 MiB");
  EXPECT_NO_THROW(bytes(6 * kMiB));
  accelerator()->set_per_process_memory_fraction(1.0);
  EXPECT_NO_THROW(bytes(8 * kMiB));
}

TEST_F(SimMemory, SnapshotHoldsWhatLives) {
  const auto a = bytes(100), b = bytes(5 * kMiB);
  {
    const auto gone = bytes(7 * kMiB);
  }
  const auto live = accelerator()->memory_snapshot(0);
  ASSERT_EQ(live.size(), 2u);
  for (const auto& tensor : {a, b})
    EXPECT_TRUE(std::any_of(live.begin(), live.end(), [&](const MemoryBlock& block) {
      return block.address == reinterpret_cast<uintptr_t>(tensor.data_ptr()) &&
             block.bytes == static_cast<int64_t>(tensor.nbytes());
    }));
}

TEST_F(SimMemory, IsReusedOnItsOwnStreamOnly) {
  const void* address = nullptr;
  {
    const auto block = bytes(kMiB / 2);
    address = block.data_ptr();
  }
  const auto guard = accelerator()->stream(accelerator()->Stream());
  EXPECT_NE(bytes(kMiB / 2).data_ptr(), address);
}

TEST_F(SimMemory, OfARecordedStreamWaitsForItsWork) {
  const auto side = accelerator()->Stream();
  auto block = bytes(kMiB);
  const void* address = block.data_ptr();
  {
    const auto guard = accelerator()->stream(side);
    sleep(100);
  }
  block.record_stream(side);
  block.reset();
  EXPECT_EQ(stats().allocated_bytes.current, 0);
  EXPECT_EQ(stats().active_bytes.current, kMiB) << "still in use";
  auto other = bytes(kMiB);
  EXPECT_NE(other.data_ptr(), address);
  side.synchronize();
  EXPECT_EQ(stats().active_bytes.current, kMiB) << "only the other";
  other.reset();
  const auto a = bytes(kMiB), b = bytes(kMiB);
  EXPECT_TRUE(a.data_ptr() == address || b.data_ptr() == address);
}

TEST_F(SimMemory, InUseIsWaitedForBeforeAnAllocationFails) {
  const auto side = accelerator()->Stream();
  auto block = bytes(60 * kMiB);
  {
    const auto guard = accelerator()->stream(side);
    sleep(50);
  }
  block.record_stream(side);
  block.reset();
  EXPECT_NO_THROW(bytes(60 * kMiB));
}

TEST_F(SimMemory, TellsWhoseItIs) {
  const auto block = bytes(10, 2);
  EXPECT_EQ(at::detail::getPrivateUse1Hooks().getDeviceFromPtr(block.data_ptr()), at(2));
  int host = 0;
  EXPECT_ERROR(at::detail::getPrivateUse1Hooks().getDeviceFromPtr(&host), c10::Error,
               "is not of a sim device");
}

TEST_F(SimMemory, ManyBlocksComeAndGo) {
  torch::manual_seed(0);
  std::vector<at::Tensor> blocks(50);
  for (int step = 0; step < 3000; ++step) {
    const auto at = static_cast<size_t>(torch::randint(50, {1}).item<int64_t>());
    const int64_t size = torch::randint(1, step % 10 == 0 ? 3 * kMiB : 20000, {1}).item<int64_t>();
    blocks[at] = at::Tensor();
    try {
      blocks[at] = bytes(size);
    } catch (const c10::OutOfMemoryError&) {
      blocks.assign(50, at::Tensor());
    }
    int64_t sum = 0;
    for (const auto& block : blocks)
      sum += block.defined() ? static_cast<int64_t>(block.nbytes()) : 0;
    ASSERT_EQ(stats().requested_bytes.current, sum);
  }
  blocks.clear();
  accelerator()->empty_cache();
  EXPECT_EQ(stats().reserved_bytes.current, 0);
  EXPECT_EQ(stats().inactive_split_bytes.current, 0);
  EXPECT_EQ(stats().active_bytes.current, 0);
}

}  // namespace
}  // namespace drivetrain::sim
