// SPDX-License-Identifier: Apache-2.0
// One device's memory as its allocator deals it out: segments from the arena, cut into blocks that
// are kept for reuse on their stream, as LibTorch's allocator for CUDA does.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/device.h"

namespace drivetrain::sim {

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

class Pool {
 public:
  explicit Pool(int index) : device_(device(index)) {}

  // An address for `bytes` > 0 that the work of `stream` may use. Gives the cache back before it
  // **throws c10::OutOfMemoryError**.
  uintptr_t allocate(size_t bytes, c10::StreamId stream);
  // Reusable on its stream at once, or, where streams were recorded, after their work so far.
  void free(uintptr_t address);
  void record(uintptr_t address, c10::Stream stream);
  // **Blocks.** until the device's work is done: it may use what is given back.
  void empty_cache();

  DeviceStats stats();
  void reset_accumulated();
  void reset_peaks();
  std::pair<size_t, size_t> info();  // free and total bytes
  void set_fraction(double fraction);
  std::vector<std::pair<uintptr_t, size_t>> live();  // addresses and requested bytes

 private:
  struct Block {
    uintptr_t address = 0;
    size_t bytes = 0, requested = 0;
    c10::StreamId stream = 0;
    bool small = false, allocated = false;
    Block *before = nullptr, *after = nullptr;                // neighbours in the segment
    std::vector<c10::Stream> users = {};                      // recorded streams
    std::vector<std::shared_ptr<const Moment>> moments = {};  // of them, once freed
    bool is_split() const { return before != nullptr || after != nullptr; }
  };
  struct Order {
    bool operator()(const Block* a, const Block* b) const;
  };

  Block* find(size_t bytes, c10::StreamId stream);
  Block* new_segment(size_t bytes, c10::StreamId stream);
  Block* reserve(size_t bytes, c10::StreamId stream);
  Block* retry(size_t bytes, c10::StreamId stream, std::unique_lock<std::mutex>& lock);
  void cut(Block* block, size_t bytes);
  void keep(Block* block);  // for reuse
  void unkeep(Block* block);
  void merge_neighbours(Block* block);
  void collect();  // blocks whose recorded streams are done
  void give_back();
  size_t allowed() const;
  [[noreturn]] void out_of_memory(size_t bytes);
  // Adds to (or takes from) a statistic, for all blocks and for those of the block's kind.
  static void count(c10::CachingAllocator::StatArray& stat, bool small, int64_t amount);

  SimDevice& device_;
  std::mutex mutex_;
  DeviceStats stats_;
  double fraction_ = 1.0;
  std::unordered_map<uintptr_t, std::unique_ptr<Block>> blocks_;
  std::set<Block*, Order> kept_;
  std::list<Block*> waiting_;
};

}  // namespace drivetrain::sim
