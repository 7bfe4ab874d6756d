// SPDX-License-Identifier: Apache-2.0
#include "sim/arena.h"

#include <drivetrain/error.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "core/sizes.h"
#include "core/text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace drivetrain::sim {
namespace {

constexpr size_t kSpare = 4;  // addresses for each byte

[[noreturn]] void fail(const char* what, size_t span) {
  throw HardwareError(core::str("sim: ", what, " of ",
                                core::format_bytes(static_cast<int64_t>(span)),
                                " failed: ", std::strerror(errno),
                                "; allowed: what the address space has room for; lower "
                                "DRIVETRAIN_SIM_MEMORY or raise ulimit -v"));
}

}  // namespace

Arena::Arena(size_t bytes, bool protect)
    : span_((bytes * kSpare + kPage - 1) / kPage * kPage),
      file_(memfd_create("drivetrain-sim", MFD_CLOEXEC)) {
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(span_)) != 0)
    fail("a file in memory", span_);
  const auto map = [&](int rights) {
    void* start = mmap(nullptr, span_, rights, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (start == MAP_FAILED) fail("a mapping", span_);
    // A child of fork would write into its parent's devices; a core dump would hold them all.
    madvise(start, span_, MADV_DONTFORK);
    madvise(start, span_, MADV_DONTDUMP);
    return static_cast<char*>(start);
  };
  kernels_ = map(PROT_READ | PROT_WRITE);
  tensors_ = protect ? map(PROT_NONE) : kernels_;
  free_.emplace(0, span_);
}

Arena::~Arena() {
  if (tensors_ != kernels_) munmap(tensors_, span_);
  munmap(kernels_, span_);
  close(file_);
}

std::optional<uintptr_t> Arena::take(size_t bytes) {
  for (auto place = free_.begin(); place != free_.end(); ++place) {
    const auto [offset, room] = *place;
    if (room < bytes) continue;
    free_.erase(place);
    if (room > bytes) free_.emplace(offset + bytes, room - bytes);
    return reinterpret_cast<uintptr_t>(tensors_ + offset);
  }
  return std::nullopt;
}

void Arena::give(uintptr_t address, size_t bytes) {
  size_t offset = address - reinterpret_cast<uintptr_t>(tensors_);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(offset, bytes);
}

bool Arena::holds(const void* address) const {
  const auto* byte = static_cast<const char*>(address);
  return byte >= tensors_ && byte < tensors_ + span_;
}

void* Arena::of_kernels(const void* address) const {
  return kernels_ + (static_cast<const char*>(address) - tensors_);
}

}  // namespace drivetrain::sim
