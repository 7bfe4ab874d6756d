// SPDX-License-Identifier: Apache-2.0
#include "sim/guard.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "sim/device.h"
#include "sim/generator.h"
#include "sim/kernel_thread.h"
#include "sim/memory.h"

namespace drivetrain::sim {
namespace {

using c10::Device;
using c10::DeviceIndex;

// What LibTorch's void* points to: the moment last recorded, and in which stream.
struct SimEvent {
  std::mutex mutex;
  std::shared_ptr<const Moment> moment;
  Queue* queue = nullptr;

  std::shared_ptr<const Moment> last() {
    const std::lock_guard<std::mutex> lock(mutex);
    return moment;
  }
};

SimEvent& event_of(void* event) { return *static_cast<SimEvent*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  Device getDevice() const override { return {kType, static_cast<DeviceIndex>(current_device())}; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    set_current_device(device);
    return before;
  }
  void setDevice(Device device) const override { set_current_device(device); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() < settings().devices) set_current_device(device);
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(settings().devices);
  }

  // --- streams
  c10::Stream getStream(Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(Device device, bool urgent) const override {
    return new_stream(device, urgent);
  }
  c10::Stream getNewStream(Device device, int priority) const override {
    return new_stream(device, priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    check_driver();
    queue_of(stream).synchronize();
  }
  void synchronizeDevice(DeviceIndex index) const override {
    check_driver();
    refuse_in_child("synchronizing");
    const int which = index < 0 ? current_device() : static_cast<int>(index);
    if (is_touched(which)) device(which).synchronize();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

  // --- events
  void record(void** event, const c10::Stream& stream, DeviceIndex index,
              c10::EventFlag) const override {
    TORCH_CHECK(index < 0 || index == stream.device_index(),
                "an event of sim:", static_cast<int>(index), " was recorded on a stream of ",
                stream.device());
    check_driver();
    if (*event == nullptr) *event = new SimEvent;
    Queue& queue = queue_of(stream);
    auto moment = queue.mark();
    const std::lock_guard<std::mutex> lock(event_of(*event).mutex);
    event_of(*event).moment = std::move(moment);
    event_of(*event).queue = &queue;
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) queue_of(stream).await(event_of(event).last());
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || event_of(event).last()->reached();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    event_of(event).last()->wait();
    event_of(event).queue->rethrow();
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<SimEvent*>(event);
  }
  double elapsedTime(void* begin, void* end, DeviceIndex) const override {
    const auto first = event_of(begin).last(), last = event_of(end).last();
    TORCH_CHECK(first->reached() && last->reached(),
                "both events must be reached before the time between them is known");
    return std::chrono::duration<double, std::milli>(last->time() - first->time()).count();
  }

 private:
  static c10::Stream stream(Device device, c10::StreamId id) {
    const auto index =
        static_cast<DeviceIndex>(device.index() < 0 ? current_device() : device.index());
    return c10::Stream(c10::Stream::UNSAFE, Device(kType, index), id);
  }
  static c10::Stream new_stream(Device device, bool urgent) {
    const int index = static_cast<int>(stream(device, 0).device_index());
    return stream(device, sim::device(index).new_stream(urgent));
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex index) const override { return is_touched(index); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(settings().devices); }
  void setCurrentDevice(DeviceIndex index) const override { set_current_device({kType, index}); }
  DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(current_device());
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = getCurrentDevice();
    setCurrentDevice(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override { return new_generator(index); }
  at::Device getDeviceFromPtr(void* address) const override {
    const auto index = device_of(address);
    TORCH_CHECK(index, "the address ", address, " is not of a sim device");
    return {kType, static_cast<DeviceIndex>(*index)};
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  // Keeps what fits, as a copy in the order of the current stream.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr data = device_allocator()->allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) {
      void* to = of_kernels(data.get());
      const void* from = of_kernels(storage.data());
      current_queue(storage.device().index()).enqueue("aten::resize_", [to, from, kept] {
        std::memcpy(to, from, kept);
      });
    }
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};

}  // namespace

const c10::impl::DeviceGuardImplInterface* new_guard() { return new Guard; }
at::PrivateUse1HooksInterface* new_hooks() { return new Hooks; }

}  // namespace drivetrain::sim
