// SPDX-License-Identifier: Apache-2.0
// Sizes are kept by address, in shards with a lock each, so that a pointer which the layer did not
// hand out (allocated before it was in place, or through the inner allocator) is freed uncounted.
// The data pointers stay what the inner allocator made, with another deleter: LibTorch's code that
// looks for simple data pointers, copy-on-write among it, goes on working.
#include "hardware/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>

#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>

#include "core/sizes.h"

namespace drivetrain::hardware {
namespace {

struct alignas(64) Shard {
  std::mutex mutex;
  ska::flat_hash_map<void*, int64_t> sizes;
};

struct Counts {
  std::array<Shard, 64> shards;
  std::atomic<int64_t> bytes{0}, peak{0}, allocated{0}, freed{0};
  std::atomic<int64_t> blocks{0}, peak_blocks{0}, num_allocated{0}, num_freed{0}, num_ooms{0};
  std::atomic<int64_t> limit{std::numeric_limits<int64_t>::max()};
  c10::Allocator* inner = nullptr;
  c10::DeleterFnPtr inner_deleter = nullptr;
};

// Never destroyed: tensors are freed until the very end of the process.
Counts& counts() {
  static auto* instance = new Counts;
  return *instance;
}

Shard& shard_of(void* address) {
  // Allocations are 64-byte aligned and mostly page-sized multiples: mix before taking bits.
  const uint64_t mixed = reinterpret_cast<uintptr_t>(address) * 0x9E3779B97F4A7C15ULL;
  return counts().shards[mixed >> 58];
}

void raise_to(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Takes the bytes before they are allocated, so that the limit holds for threads together.
void reserve(int64_t bytes) {
  Counts& c = counts();
  const int64_t now = c.bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const int64_t limit = c.limit.load(std::memory_order_relaxed);
  if (now > limit) {
    c.bytes.fetch_sub(bytes, std::memory_order_relaxed);
    c.num_ooms.fetch_add(1, std::memory_order_relaxed);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "cpu out of memory: tried to allocate ",
                     core::format_bytes(bytes), " with ", core::format_bytes(now - bytes),
                     " allocated; the limit set by set_per_process_memory_fraction is ",
                     core::format_bytes(limit));
  }
}

void record(void* address, int64_t bytes) {
  Counts& c = counts();
  {
    Shard& shard = shard_of(address);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    shard.sizes[address] = bytes;
  }
  raise_to(c.peak, c.bytes.load(std::memory_order_relaxed));
  c.allocated.fetch_add(bytes, std::memory_order_relaxed);
  c.num_allocated.fetch_add(1, std::memory_order_relaxed);
  raise_to(c.peak_blocks, c.blocks.fetch_add(1, std::memory_order_relaxed) + 1);
}

void forget(void* address) {
  Counts& c = counts();
  int64_t bytes = 0;
  {
    Shard& shard = shard_of(address);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.sizes.find(address);
    if (found == shard.sizes.end()) return;
    bytes = found->second;
    shard.sizes.erase(found);
  }
  c.bytes.fetch_sub(bytes, std::memory_order_relaxed);
  c.freed.fetch_add(bytes, std::memory_order_relaxed);
  c.blocks.fetch_sub(1, std::memory_order_relaxed);
  c.num_freed.fetch_add(1, std::memory_order_relaxed);
}

void free_counted(void* address) {
  // Forgotten first: once freed, another thread may be given the same address.
  if (address != nullptr) forget(address);
  counts().inner_deleter(address);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto size = static_cast<int64_t>(bytes);
    reserve(size);
    c10::DataPtr data;
    try {
      data = counts().inner->allocate(bytes);
    } catch (...) {
      counts().bytes.fetch_sub(size, std::memory_order_relaxed);
      counts().num_ooms.fetch_add(1, std::memory_order_relaxed);
      throw;
    }
    if (data.get() == nullptr) return data;  // zero bytes
    record(data.get(), size);
    TORCH_INTERNAL_ASSERT(
        data.compare_exchange_deleter(counts().inner_deleter, &free_counted),
        "LibTorch's CPU allocator returned a pointer with a deleter other than its raw_deleter()");
    return data;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

struct Installed {
  c10::Allocator* allocator = nullptr;
  std::string reason;
};

Installed install() {
  c10::Allocator* current = c10::GetCPUAllocator();
  if (current->raw_deleter() == nullptr)
    return {nullptr, "the CPU allocator in use has no raw deleter to put a count on"};
  counts().inner = current;
  counts().inner_deleter = current->raw_deleter();
  static auto* layer = new CountingAllocator;
  c10::SetCPUAllocator(layer, std::numeric_limits<uint8_t>::max());
  return {layer, ""};
}

}  // namespace

std::string install_counting_allocator() {
  static const Installed installed = install();
  if (installed.allocator != nullptr && c10::GetCPUAllocator() != installed.allocator)
    return "another CPU allocator was put in place of the counting one";
  return installed.reason;
}

MemoryStats counted_memory() {
  const Counts& c = counts();
  MemoryStats stats;
  stats.allocated_bytes = {c.bytes, c.peak, c.allocated, c.freed};
  stats.active_bytes = stats.requested_bytes = stats.allocated_bytes;
  stats.allocations = {c.blocks, c.peak_blocks, c.num_allocated, c.num_freed};
  stats.active_allocations = stats.allocations;
  stats.num_ooms = c.num_ooms;
  return stats;
}

void reset_counted_peak() {
  Counts& c = counts();
  c.peak = c.bytes.load();
  c.peak_blocks = c.blocks.load();
}

std::vector<MemoryBlock> counted_blocks() {
  std::vector<MemoryBlock> blocks;
  for (Shard& shard : counts().shards) {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    for (const auto& [address, bytes] : shard.sizes)
      blocks.push_back({reinterpret_cast<uintptr_t>(address), bytes});
  }
  return blocks;
}

void limit_counted_memory(int64_t bytes) { counts().limit = bytes; }

}  // namespace drivetrain::hardware
