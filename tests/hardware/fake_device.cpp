// SPDX-License-Identifier: Apache-2.0
#include "fake_device.h"

#include <torch/torch.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <drivetrain/hardware.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace drivetrain::fake {
namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using Clock = std::chrono::steady_clock;

constexpr auto kType = c10::DeviceType::PrivateUse1;

std::atomic<bool> broken{false};
thread_local DeviceIndex current = 0;
thread_local std::array<c10::StreamId, kDevices> streams{};

struct Block {
  void* data;
  size_t bytes;
  DeviceIndex device;
};

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex());
    auto& stats = of(current);
    TORCH_CHECK_WITH(OutOfMemoryError,
                     static_cast<size_t>(stats.allocated_bytes[0].current) + bytes <= kBytes,
                     "fake: out of memory");
    for (auto* counter : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                          &stats.requested_bytes})
      (*counter)[0].increase(bytes);
    stats.allocation[0].increase(1);
    auto* block = new Block{std::malloc(bytes + 1), bytes, current};
    return {block->data, block, &release, Device(kType, current)};
  }
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      const std::lock_guard<std::mutex> lock(mutex());
      auto& stats = of(block->device);
      for (auto* counter : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                            &stats.requested_bytes})
        (*counter)[0].decrease(block->bytes);
      stats.allocation[0].decrease(1);
    }
    std::free(block->data);
    delete block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    TORCH_CHECK(!broken, "fake driver error 700");
    const std::lock_guard<std::mutex> lock(mutex());
    return of(device);
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex());
    auto& stats = of(device);
    stats.allocated_bytes[0].reset_peak();
    stats.reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex());
    return {kBytes - static_cast<size_t>(of(device).allocated_bytes[0].current), kBytes};
  }

 private:
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static c10::CachingDeviceAllocator::DeviceStats& of(DeviceIndex device) {
    static std::array<c10::CachingDeviceAllocator::DeviceStats, kDevices> stats;
    return stats.at(device);
  }
};

Allocator allocator;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  Device exchangeDevice(Device device) const override {
    const Device old = getDevice();
    setDevice(device);
    return old;
  }
  Device getDevice() const override { return {kType, current}; }
  void setDevice(Device device) const override {
    if (device.index() >= 0) current = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(Device device) const override {
    const DeviceIndex index = device.index() < 0 ? current : device.index();
    return c10::Stream(c10::Stream::UNSAFE, Device(kType, index), streams.at(index));
  }
  c10::Stream getDefaultStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(Device device, int) const override {
    static std::atomic<c10::StreamId> last{0};
    return c10::Stream(c10::Stream::UNSAFE, device, ++last);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream old = getStream(stream.device());
    streams.at(stream.device_index()) = stream.id();
    return old;
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* start, void* end, DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Clock::time_point*>(end) -
                                                     *static_cast<Clock::time_point*>(start))
        .count();
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(DeviceIndex) const override {
    TORCH_CHECK(!broken, "fake driver error 700");
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override { current = device; }
  DeviceIndex getCurrentDevice() const override { return current; }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    static std::array<at::Generator, kDevices> generators = {
        at::make_generator<at::CPUGeneratorImpl>(1), at::make_generator<at::CPUGeneratorImpl>(1)};
    return generators.at(device < 0 ? current : device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK(false, "fake: no page-locked memory");
  }
};

Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// A CPU tensor over a fake one's memory.
Tensor host(const Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const auto count = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  return at::from_blob(tensor.storage().mutable_data(), {count}, tensor.dtype())
      .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  const at::NoGradGuard no_grad;
  host(to).copy_(host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "fake: no resizing");
  return copy_from(from, to, false);
}

// Random numbers come from the device's own generator, not from the CPU's.
Tensor& normal(Tensor& self, double mean, double deviation, std::optional<at::Generator>) {
  host(self).normal_(mean, deviation, Hooks().getDefaultGenerator(self.device().index()));
  return self;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("normal_", normal);
  m.impl("as_strided", [](const Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                          std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
  });
  m.impl("view",
         [](const Tensor& self, c10::IntArrayRef sizes) { return at::native::view(self, sizes); });
  m.impl("_reshape_alias",
         [](const Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
           return at::native::_reshape_alias(self, sizes, strides);
         });
  m.impl("_local_scalar_dense", [](const Tensor& self) { return host(self).item(); });
}

// Before main, so that suites parameterised by the registry see it.
[[maybe_unused]] const bool installed = (install(), true);

}  // namespace

void install() {
  static const bool once = [] {
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(kType, &allocator);
    c10::impl::registerDeviceGuard(kType, new Guard);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    AcceleratorFacts facts;
    facts.name = facts.plugin = "fake";
    facts.communication_backend = "gloo";
    facts.visible_devices = "FAKE_VISIBLE_DEVICES";
    facts.priority = 500;
    facts.capabilities.pinned_memory = true;  // tried, and done without: it never works
    register_accelerator(facts);
    return true;
  }();
  (void)once;
}

void break_driver(bool now_broken) { broken = now_broken; }

}  // namespace drivetrain::fake
