// SPDX-License-Identifier: Apache-2.0
// One device's memory. The same pages are mapped twice: where kernels find them, and, without any
// right of access, where tensors say that they are. So the host cannot touch device memory, and no
// kernel has to lock and unlock it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace drivetrain::sim {

constexpr size_t kPage = 4096;

class Arena {
 public:
  // Room for segments of `bytes` in all, with spare addresses against fragmentation. Pages are
  // taken from the system when first written. **Throws HardwareError if** there is no room.
  Arena(size_t bytes, bool protect);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // A segment's address as tensors know it; none where the addresses are used up. `bytes` is a
  // multiple of kPage.
  std::optional<uintptr_t> take(size_t bytes);
  // Gives the segment's pages back to the system.
  void give(uintptr_t address, size_t bytes);

  bool holds(const void* address) const;
  // Where kernels find what tensors know as `address`.
  void* of_kernels(const void* address) const;

 private:
  size_t span_;
  int file_;
  char* kernels_;                  // read and write
  char* tensors_;                  // no access, or kernels_
  std::map<size_t, size_t> free_;  // offset: bytes
};

}  // namespace drivetrain::sim
