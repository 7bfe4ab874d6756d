// SPDX-License-Identifier: Apache-2.0
#include "sim/memory.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "sim/kernel_thread.h"
#include "sim/settings.h"

namespace drivetrain::sim {
namespace {

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    check_driver();
    refuse_in_child("memory");
    const int index = current_device();
    const c10::Device where(kType, static_cast<c10::DeviceIndex>(index));
    void* address = nullptr;
    if (bytes > 0)
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the pool computes with addresses.
      address = reinterpret_cast<void*>(pool(index).allocate(bytes, current_stream(index).id()));
    return {address, address, &release, where};
  }
  static void release(void* address) {
    if (address == nullptr || in_child()) return;
    pool(*device_of(address)).free(reinterpret_cast<uintptr_t>(address));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    if (bytes == 0) return;
    current_queue(*device_of(to)).run("a copy of device memory", [=] {
      std::memcpy(of_kernels(to), of_kernels(from), bytes);
    });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    check_driver();
    for (int index = 0; index < settings().devices; ++index)
      if (is_touched(index)) pool(index).empty_cache();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() != nullptr)
      pool(*device_of(data.get())).record(reinterpret_cast<uintptr_t>(data.get()), stream);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    check_driver();
    return pool(index).stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { pool(index).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex index) override { pool(index).reset_peaks(); }
  // Without `override`: LibTorch 2.9 has no such function.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
  // NOLINTNEXTLINE(modernize-use-override)
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) {
    check_driver();
    return pool(index).info();
  }
#pragma clang diagnostic pop
};

// Page-locked memory: only known to be such. Copies that are under way hold their tensor.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    check_driver();
    if (bytes == 0) return {nullptr, nullptr, &release, c10::kCPU};
    void* address = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "no page-locked memory for ", bytes,
                     " bytes");
    const std::unique_lock<std::shared_mutex> lock(mutex());
    blocks().emplace(static_cast<char*>(address), bytes);
    return {address, address, &release, c10::kCPU};
  }
  static void release(void* address) {
    if (address == nullptr) return;
    {
      const std::unique_lock<std::shared_mutex> lock(mutex());
      blocks().erase(static_cast<char*>(address));
    }
    std::free(address);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static bool holds(const void* address) {
    const auto* byte = static_cast<const char*>(address);
    const std::shared_lock<std::shared_mutex> lock(mutex());
    auto place = blocks().upper_bound(const_cast<char*>(byte));
    if (place == blocks().begin()) return false;
    --place;
    return byte < place->first + place->second;
  }

 private:
  static std::shared_mutex& mutex() {
    static auto* instance = new std::shared_mutex;
    return *instance;
  }
  static std::map<char*, size_t>& blocks() {
    static auto* instance = new std::map<char*, size_t>;
    return *instance;
  }
};

}  // namespace

Pool& pool(int index) {
  static auto* pools = new std::array<std::unique_ptr<Pool>, kMaxDevices>;
  static std::array<std::once_flag, kMaxDevices> once;
  auto& place = pools->at(static_cast<size_t>(index));
  std::call_once(once.at(static_cast<size_t>(index)),
                 [&] { place = std::make_unique<Pool>(index); });
  return *place;
}

c10::DeviceAllocator* device_allocator() {
  static auto* instance = new DeviceMemory;
  return instance;
}

std::optional<int> device_of(const void* address) {
  for (int index = 0; index < settings().devices; ++index)
    if (is_touched(index) && device(index).arena().holds(address)) return index;
  return std::nullopt;
}

void* of_kernels(const void* address) {
  if (address == nullptr) return nullptr;
  const auto index = device_of(address);
  TORCH_CHECK(index, "sim: a tensor's memory at ", address, " is not of a simulated device");
  return device(*index).arena().of_kernels(address);
}

c10::Allocator* pinned_allocator() {
  static auto* instance = new PinnedMemory;
  return instance;
}

bool is_pinned(const void* address) { return PinnedMemory::holds(address); }

}  // namespace drivetrain::sim
