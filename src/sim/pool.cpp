// SPDX-License-Identifier: Apache-2.0
#include "sim/pool.h"

#include <algorithm>
#include <tuple>

#include "core/sizes.h"
#include "core/text.h"

namespace drivetrain::sim {
namespace {

// As LibTorch's allocator for CUDA rounds.
constexpr size_t kRound = 512;
constexpr size_t kMaxSmall = size_t{1} << 20;
constexpr size_t kSmallSegment = size_t{2} << 20;
constexpr size_t kMinLarge = size_t{10} << 20;
constexpr size_t kLargeSegment = size_t{20} << 20;
constexpr size_t kRoundLarge = size_t{2} << 20;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

size_t segment_for(size_t bytes) {
  if (bytes <= kMaxSmall) return kSmallSegment;
  return bytes < kMinLarge ? kLargeSegment : rounded(bytes, kRoundLarge);
}

std::string format(size_t bytes) { return core::format_bytes(static_cast<int64_t>(bytes)); }

size_t current(const c10::CachingAllocator::StatArray& stat) {
  return static_cast<size_t>(stat[0].current);
}

}  // namespace

bool Pool::Order::operator()(const Block* a, const Block* b) const {
  return std::tie(a->small, a->stream, a->bytes, a->address) <
         std::tie(b->small, b->stream, b->bytes, b->address);
}

void Pool::count(c10::CachingAllocator::StatArray& stat, bool small, int64_t amount) {
  using c10::CachingAllocator::StatType;
  for (const auto type : {StatType::AGGREGATE, small ? StatType::SMALL_POOL : StatType::LARGE_POOL})
    if (auto& each = stat.at(static_cast<size_t>(type)); amount >= 0)
      each.increase(static_cast<size_t>(amount));
    else
      each.decrease(static_cast<size_t>(-amount));
}

size_t Pool::allowed() const {
  return static_cast<size_t>(static_cast<double>(settings().memory_bytes) * fraction_);
}

// --- allocate

uintptr_t Pool::allocate(size_t requested, c10::StreamId stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  collect();
  const size_t bytes = rounded(requested, kRound);
  if (current(stats_.allocated_bytes) + bytes > allowed()) out_of_memory(requested);
  Block* block = find(bytes, stream);
  if (block == nullptr) block = reserve(bytes, stream);
  if (block == nullptr) block = retry(bytes, stream, lock);
  if (block == nullptr) out_of_memory(requested);
  cut(block, bytes);
  block->allocated = true;
  block->requested = requested;
  const auto size = static_cast<int64_t>(block->bytes);
  count(stats_.allocation, block->small, 1);
  count(stats_.active, block->small, 1);
  count(stats_.allocated_bytes, block->small, size);
  count(stats_.active_bytes, block->small, size);
  count(stats_.requested_bytes, block->small, static_cast<int64_t>(requested));
  return block->address;
}

Pool::Block* Pool::find(size_t bytes, c10::StreamId stream) {
  Block key{.bytes = bytes, .stream = stream, .small = bytes <= kMaxSmall};
  const auto place = kept_.lower_bound(&key);
  if (place == kept_.end() || (*place)->small != key.small || (*place)->stream != stream)
    return nullptr;
  Block* block = *place;
  unkeep(block);
  return block;
}

// A new segment; where there is no room for one of the usual size, of just this size.
Pool::Block* Pool::reserve(size_t bytes, c10::StreamId stream) {
  Block* block = new_segment(segment_for(bytes), stream);
  if (block == nullptr) block = new_segment(rounded(bytes, kPage), stream);
  if (block != nullptr) {
    block->small = bytes <= kMaxSmall;
    count(stats_.segment, block->small, 1);
    count(stats_.reserved_bytes, block->small, static_cast<int64_t>(block->bytes));
  }
  return block;
}

Pool::Block* Pool::new_segment(size_t bytes, c10::StreamId stream) {
  if (current(stats_.reserved_bytes) + bytes > allowed()) return nullptr;
  const auto address = device_.arena().take(bytes);
  if (!address) return nullptr;
  ++stats_.num_device_alloc;
  auto block = std::make_unique<Block>();
  block->address = *address;
  block->bytes = bytes;
  block->stream = stream;
  return blocks_.emplace(*address, std::move(block)).first->second.get();
}

// Waits for the device, whose work may still use what is free, and gives the cache back.
Pool::Block* Pool::retry(size_t bytes, c10::StreamId stream, std::unique_lock<std::mutex>& lock) {
  ++stats_.num_alloc_retries;
  ++stats_.num_sync_all_streams;
  lock.unlock();  // the work may free memory
  device_.drain();
  lock.lock();
  collect();
  if (Block* block = find(bytes, stream)) return block;
  give_back();
  return reserve(bytes, stream);
}

void Pool::cut(Block* block, size_t bytes) {
  const size_t rest = block->bytes - bytes;
  if (rest < kRound || (!block->small && rest <= kMaxSmall)) return;
  auto piece = std::make_unique<Block>();
  piece->address = block->address + bytes;
  piece->bytes = rest;
  piece->stream = block->stream;
  piece->small = block->small;
  piece->before = block;
  piece->after = block->after;
  if (piece->after != nullptr) piece->after->before = piece.get();
  block->after = piece.get();
  block->bytes = bytes;
  keep(piece.get());
  blocks_.emplace(piece->address, std::move(piece));
}

void Pool::out_of_memory(size_t bytes) {
  ++stats_.num_ooms;
  const size_t total = static_cast<size_t>(settings().memory_bytes);
  const size_t allocated = current(stats_.allocated_bytes);
  const size_t reserved = current(stats_.reserved_bytes);
  const std::string share =
      fraction_ < 1.0 ? core::str(" This process may use ", format(allowed()), ".") : "";
  TORCH_CHECK_WITH(OutOfMemoryError, false, device_.name(), " is out of memory. Tried to allocate ",
                   format(bytes), ". It has a total capacity of ", format(total), " of which ",
                   format(total - reserved), " is free.", share, " Of the memory in use ",
                   format(allocated), " is allocated by tensors, and ",
                   format(reserved - allocated), " is reserved but unallocated.");
}

// --- free

void Pool::free(uintptr_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* block = blocks_.at(address).get();
  block->allocated = false;
  count(stats_.allocation, block->small, -1);
  count(stats_.allocated_bytes, block->small, -static_cast<int64_t>(block->bytes));
  count(stats_.requested_bytes, block->small, -static_cast<int64_t>(block->requested));
  for (const c10::Stream& user : block->users)
    block->moments.push_back(sim::device(user.device_index()).queue(user.id()).mark());
  block->users.clear();
  waiting_.push_back(block);
  collect();
}

void Pool::collect() {
  for (auto place = waiting_.begin(); place != waiting_.end();) {
    Block* block = *place;
    std::erase_if(block->moments, [](const auto& moment) { return moment->reached(); });
    if (!block->moments.empty()) {
      ++place;
      continue;
    }
    place = waiting_.erase(place);
    count(stats_.active, block->small, -1);
    count(stats_.active_bytes, block->small, -static_cast<int64_t>(block->bytes));
    merge_neighbours(block);
    keep(block);
  }
}

void Pool::merge_neighbours(Block* block) {
  const auto absorb = [this](Block* first, Block* second) {
    first->bytes += second->bytes;
    first->after = second->after;
    if (second->after != nullptr) second->after->before = first;
    blocks_.erase(second->address);
  };
  if (Block* next = block->after; next != nullptr && kept_.contains(next)) {
    unkeep(next);
    absorb(block, next);
  }
  if (Block* previous = block->before; previous != nullptr && kept_.contains(previous)) {
    unkeep(previous);
    // `block` keeps its identity: it takes over the address of the one before.
    const uintptr_t start = previous->address;
    block->bytes += previous->bytes;
    block->before = previous->before;
    if (block->before != nullptr) block->before->after = block;
    auto owner = std::move(blocks_.at(block->address));
    blocks_.erase(block->address);
    block->address = start;
    blocks_[start] = std::move(owner);
  }
}

void Pool::keep(Block* block) {
  kept_.insert(block);
  if (!block->is_split()) return;
  count(stats_.inactive_split, block->small, 1);
  count(stats_.inactive_split_bytes, block->small, static_cast<int64_t>(block->bytes));
}

void Pool::unkeep(Block* block) {
  kept_.erase(block);
  if (!block->is_split()) return;
  count(stats_.inactive_split, block->small, -1);
  count(stats_.inactive_split_bytes, block->small, -static_cast<int64_t>(block->bytes));
}

void Pool::record(uintptr_t address, c10::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* block = blocks_.at(address).get();
  const bool own = stream.id() == block->stream && &sim::device(stream.device_index()) == &device_;
  const bool known =
      std::find(block->users.begin(), block->users.end(), stream) != block->users.end();
  if (!own && !known) block->users.push_back(stream);
}

void Pool::empty_cache() {
  device_.drain();
  const std::lock_guard<std::mutex> lock(mutex_);
  collect();
  give_back();
}

void Pool::give_back() {
  const std::vector<Block*> kept(kept_.begin(), kept_.end());
  for (Block* block : kept) {
    if (block->is_split()) continue;
    unkeep(block);
    device_.arena().give(block->address, block->bytes);
    ++stats_.num_device_free;
    count(stats_.segment, block->small, -1);
    count(stats_.reserved_bytes, block->small, -static_cast<int64_t>(block->bytes));
    blocks_.erase(block->address);
  }
}

// --- figures

DeviceStats Pool::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  collect();
  return stats_;
}

namespace {

// fn on each figure that has a peak and sums.
template <class Fn>
void for_each_figure(DeviceStats& s, Fn&& fn) {
  for (auto* stat :
       {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
        &s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes})
    for (auto& each : *stat) fn(each);
}

}  // namespace

void Pool::reset_accumulated() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for_each_figure(stats_, [](auto& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void Pool::reset_peaks() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for_each_figure(stats_, [](auto& stat) { stat.reset_peak(); });
}

std::pair<size_t, size_t> Pool::info() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto total = static_cast<size_t>(settings().memory_bytes);
  return {total - current(stats_.reserved_bytes), total};
}

void Pool::set_fraction(double fraction) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fraction_ = fraction;
}

std::vector<std::pair<uintptr_t, size_t>> Pool::live() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::pair<uintptr_t, size_t>> found;
  for (const auto& [address, block] : blocks_)
    if (block->allocated) found.emplace_back(address, block->requested);
  return found;
}

}  // namespace drivetrain::sim
