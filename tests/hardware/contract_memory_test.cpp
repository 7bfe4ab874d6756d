// SPDX-License-Identifier: Apache-2.0
// The contract's memory group (contract.h).
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "contract.h"

namespace drivetrain {
namespace {

TEST_P(Contract, CountsMemoryInBytes) {
  follows(can.memory_stats, [&] {
    const int64_t before = accelerator->memory_allocated();
    const int64_t size = 64 << 20;
    auto block = bytes(size);
    EXPECT_EQ(accelerator->memory_allocated() - before, size);
    EXPECT_GE(accelerator->memory_stats().allocations.current, 1);
    EXPECT_GT(accelerator->memory_reserved(), 0);
    EXPECT_THAT(accelerator->memory_summary(), ::testing::HasSubstr("inactive split"));
    EXPECT_THAT(accelerator->memory_summary({}, true),
                ::testing::Not(::testing::HasSubstr("inactive split")));
    block.reset();
    EXPECT_EQ(accelerator->memory_allocated(), before);
    accelerator->empty_cache();
  });
}

TEST_P(Contract, PeaksGrowAndAreReset) {
  follows(can.memory_peaks, [&] {
    accelerator->reset_peak_memory_stats();
    const int64_t before = accelerator->max_memory_allocated();
    const int64_t size = 64 << 20;
    bytes(size).fill_(1);
    EXPECT_EQ(accelerator->max_memory_allocated() - before, size);
    EXPECT_GE(accelerator->max_memory_reserved(), size);
    accelerator->reset_max_memory_allocated();
    EXPECT_EQ(accelerator->max_memory_allocated(), before);
    accelerator->reset_max_memory_cached();
    const int64_t reserved = accelerator->memory_reserved();
    EXPECT_LE(reserved, accelerator->max_memory_reserved());
  });
  follows(can.memory_peaks, [&] { accelerator->reset_peak_memory_stats(); });
}

TEST_P(Contract, KnowsHowMuchMemoryThereIs) {
  follows(can.memory_info, [&] {
    EXPECT_GT(accelerator->total_memory(), 0);
    EXPECT_GT(accelerator->available_memory(), 0);
    EXPECT_LE(accelerator->available_memory(), accelerator->total_memory());
  });
  follows(can.memory_info, [&] { accelerator->available_memory(); });
}

TEST_P(Contract, ListsLiveBlocksWhereItCan) {
  follows(can.memory_snapshot, [&] {
    accelerator->memory_snapshot();  // from here on blocks are known
    const auto block = bytes(12345);
    const auto live = accelerator->memory_snapshot();
    const auto address = reinterpret_cast<uintptr_t>(block.data_ptr());
    EXPECT_TRUE(std::any_of(live.begin(), live.end(), [&](const MemoryBlock& known) {
      return known.address == address && known.bytes == 12345;
    }));
  });
}

TEST_P(Contract, LimitsMemoryWhereItCan) {
  EXPECT_ERROR(accelerator->set_per_process_memory_fraction(1.5), HardwareError, "allowed: 0 to 1");
  EXPECT_ERROR(accelerator->set_per_process_memory_fraction(NAN), HardwareError, "allowed: 0 to 1");
  follows(can.memory_fraction, [&] {
    accelerator->set_per_process_memory_fraction(0.0);
    EXPECT_THROW(bytes(1 << 20), c10::OutOfMemoryError);
    accelerator->set_per_process_memory_fraction(1.0);
    EXPECT_NO_THROW(bytes(1 << 20));
  });
}

TEST_P(Contract, PinsOrReturnsTheSameTensor) {
  const auto tensor = torch::arange(6);
  const auto pinned = accelerator->pin_memory(tensor);
  EXPECT_TRUE(torch::equal(pinned, tensor));
  if (!can.pinned_memory) {
    EXPECT_TRUE(pinned.is_same(tensor));
  }
  EXPECT_FALSE(accelerator->pin_memory(torch::Tensor()).defined());
}

// A training program's way: an allocation fails, the caller frees what it can spare and goes on.
TEST_P(Contract, RunsOutOfMemoryAndRecovers) {
  if (!can.memory_fraction) GTEST_SKIP() << GetParam() << " has no memory_fraction";
  const int64_t size = 32 << 20;
  accelerator->empty_cache();
  const double room = static_cast<double>(accelerator->memory_allocated() + 2 * size + size / 2);
  accelerator->set_per_process_memory_fraction(room /
                                               static_cast<double>(accelerator->total_memory()));
  const int64_t failures = accelerator->memory_stats().num_ooms;
  std::vector<at::Tensor> held;
  EXPECT_THROW(while (held.size() < 4) held.push_back(bytes(size)), c10::OutOfMemoryError);
  EXPECT_EQ(held.size(), 2u);
  EXPECT_GT(accelerator->memory_stats().num_ooms, failures);
  held.pop_back();
  EXPECT_NO_THROW(held.push_back(bytes(size).fill_(3)));
  EXPECT_EQ(held.back().max().item<uint8_t>(), 3);
  EXPECT_ANY_THROW(bytes(size));
  accelerator->set_per_process_memory_fraction(1.0);
  EXPECT_NO_THROW(bytes(2 * size));
}

}  // namespace
}  // namespace drivetrain
