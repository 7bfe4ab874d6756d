// SPDX-License-Identifier: Apache-2.0
// Every accelerator that LibTorch knows, by device type. at::accelerator's free functions speak of
// the one accelerator that a LibTorch build has; the interfaces beneath them, used here, take the
// type, so a build with a second one (a plugin beside CUDA) is served right.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <drivetrain/backends.h>
#include <drivetrain/error.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "core/log.h"
#include "core/text.h"
#include "hardware/event_state.h"
#include "hardware/facts/visible_devices.h"
#include "hardware/fork_guard.h"
#include "hardware/table.h"

namespace drivetrain {

using core::str;

namespace {

// fn(), with what the device's library throws as HardwareError. Out of memory stays what it is:
// callers react to that type.
template <class Fn>
auto guarded(const std::string& name, const char* call, Fn&& fn) {
  const auto failed = [&](const std::string& reason) {
    return HardwareError(str(name, ": ", call, " failed: ", reason,
                             "; allowed: what this backend's library supports; see its reason"));
  };
  if (hardware::forked_after_device_use())
    throw HardwareError(str(name, ": ", call, " failed: ", hardware::kForkedTooLate,
                            "; allowed: devices of the process itself; start it by exec"));
  try {
    return fn();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw failed(error.what());
  }
}

const c10::impl::DeviceGuardImplInterface& guard_of(c10::DeviceType type) {
  return *c10::impl::getDeviceGuardImpl(type);
}

c10::Device device_of(c10::DeviceType type, int index) {
  return {type, static_cast<c10::DeviceIndex>(index)};
}

// The device type's allocator, where it keeps statistics; else none.
c10::DeviceAllocator* statistics_of(c10::DeviceType type) {
  try {
    return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
  } catch (const c10::Error&) {
    return nullptr;  // no allocator registered for the type
  }
}

constexpr const char* kNoStatistics = "its allocator keeps no statistics (no c10::DeviceAllocator)";

MemoryCounter counter_of(const c10::CachingAllocator::StatArray& stats) {
  const auto& all = stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {all.current, all.peak, all.allocated, all.freed};
}

// Available and total bytes. LibTorch 2.9's allocators do not tell.
template <class Allocator>
std::pair<int64_t, int64_t> memory_info_of(Allocator& allocator, int index) {
  const auto device = static_cast<c10::DeviceIndex>(index);
  if constexpr (requires { allocator.getMemoryInfo(device); }) {
    const auto [available, total] = allocator.getMemoryInfo(device);
    return {static_cast<int64_t>(available), static_cast<int64_t>(total)};
  } else {
    TORCH_CHECK(false, "this LibTorch is older than getMemoryInfo()");
  }
}

struct DeviceEvent final : detail::EventState {
  DeviceEvent(std::string name, c10::DeviceType type, bool timing)
      : name(std::move(name)),
        event(type, timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT) {}

  c10::Stream stream_or_current(std::optional<c10::Stream> stream) const {
    const auto& guard = guard_of(event.device_type());
    return stream ? *stream : guard.getStream(guard.getDevice());
  }
  void record(std::optional<c10::Stream> stream) override {
    guarded(name, "Event.record", [&] { event.record(stream_or_current(stream)); });
  }
  void wait(std::optional<c10::Stream> stream) const override {
    guarded(name, "Event.wait", [&] { event.block(stream_or_current(stream)); });
  }
  bool query() const override {
    return guarded(name, "Event.query", [&] { return event.query(); });
  }
  void synchronize() const override {
    guarded(name, "Event.synchronize", [&] { event.synchronize(); });
  }
  double elapsed_ms(const EventState& end) const override {
    const auto* other = dynamic_cast<const DeviceEvent*>(&end);
    if (other == nullptr)
      throw HardwareError(name +
                          ": Event.elapsed_time was given an event of another backend; "
                          "allowed: two events of one backend; make both with it");
    return guarded(name, "Event.elapsed_time", [&] { return event.elapsedTime(other->event); });
  }

  const std::string name;
  c10::Event event;
};

// The device types that LibTorch serves itself; for them its hooks know whether a driver answers.
bool has_own_hooks(c10::DeviceType type) {
  return type == c10::DeviceType::CUDA || type == c10::DeviceType::XPU ||
         type == c10::DeviceType::MPS || type == c10::DeviceType::MTIA;
}

std::string driver_state(const AcceleratorFacts& facts) {
  if (facts.driver_path.empty()) return "";
  std::error_code error;
  const bool loaded = std::filesystem::exists(facts.driver_path, error);
  return str("; its driver is ", loaded ? "loaded" : "not loaded", " (", facts.driver_path, ")");
}

std::string hidden_devices(const AcceleratorFacts& facts) {
  const char* value =
      facts.visible_devices.empty() ? nullptr : std::getenv(facts.visible_devices.c_str());
  if (value == nullptr) return "";
  try {
    const auto shown = hardware::parse_visible_devices(facts.visible_devices, value);
    return str("; ", facts.visible_devices, " is \"", value, "\"",
               shown.empty() ? ", which hides every device" : "");
  } catch (const ConfigError& error) {
    return "; " + error.what_happened();
  }
}

std::string why_plugin_is_missing(const AcceleratorFacts& facts) {
  if (!c10::is_privateuse1_backend_registered())
    return str("no plugin is loaded that registers \"", facts.plugin, "\" as PrivateUse1",
               driver_state(facts));
  const std::string registered = c10::get_privateuse1_backend();
  if (registered != facts.plugin)
    return str("the PrivateUse1 plugin loaded is \"", registered, "\"");
  return at::isPrivateUse1HooksRegistered() ? "" : "its plugin has registered no hooks";
}

}  // namespace

DeviceAccelerator::DeviceAccelerator(AcceleratorFacts facts) : BaseAccelerator(std::move(facts)) {}
XpuAccelerator::XpuAccelerator() : DeviceAccelerator(hardware::builtin_facts("xpu")) {}

Capabilities DeviceAccelerator::capabilities() const {
  Capabilities can = facts().capabilities;
  if (statistics_of(device_type()) == nullptr)
    can.memory_stats = can.memory_peaks = can.memory_info = false;
  return can;
}

// --- device

std::string DeviceAccelerator::why_unavailable() const {
  const c10::DeviceType type = device_type();
  if (type == c10::DeviceType::PrivateUse1)
    if (std::string reason = why_plugin_is_missing(facts()); !reason.empty()) return reason;
  if (!c10::impl::hasDeviceGuardImpl(type))
    return str("this LibTorch was built without it, or its library is not linked",
               driver_state(facts()));
  if (hardware::forked_after_device_use()) return hardware::kForkedTooLate;
  try {
    const bool answers = !has_own_hooks(type) ||
                         at::globalContext().getAcceleratorHooksInterface(type).isAvailable();
    if (!answers || guard_of(type).deviceCount() <= 0)
      return str("LibTorch has it, but finds no device", hidden_devices(facts()),
                 driver_state(facts()));
  } catch (const std::exception& error) {
    return str("LibTorch has it, but asking for devices failed: ", error.what(),
               hidden_devices(facts()), driver_state(facts()));
  }
  hardware::note_device_use();  // counting the devices has started the driver's library
  return "";
}

int DeviceAccelerator::device_count() const {
  return is_available() ? guard_of(device_type()).deviceCount() : 0;
}

int DeviceAccelerator::current_device() const {
  return guarded(name(), "current_device",
                 [&]() -> int { return guard_of(device_type()).getDevice().index(); });
}

void DeviceAccelerator::do_set_device(int index) const {
  guarded(name(), "set_device",
          [&] { guard_of(device_type()).setDevice(device_of(device_type(), index)); });
}

void DeviceAccelerator::do_synchronize(int index) const {
  guarded(name(), "synchronize",
          [&] { guard_of(device_type()).synchronizeDevice(static_cast<c10::DeviceIndex>(index)); });
}

at::Tensor DeviceAccelerator::do_pin_memory(const at::Tensor& tensor) const {
  try {
    return tensor.pin_memory();
  } catch (const c10::Error& error) {
    // Page-locked memory is scarce, and only makes copies faster.
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true))
      core::log_warning(str(
          name(), ": no page-locked memory, going on without: ", error.what_without_backtrace()));
    return tensor;
  }
}

// --- random numbers

at::Generator DeviceAccelerator::do_generator(int index) const {
  return guarded(name(), "its generator", [&]() -> at::Generator {
    return at::globalContext().defaultGenerator(device_of(device_type(), index));
  });
}

// --- memory

void DeviceAccelerator::do_empty_cache() const {
  auto* allocator = statistics_of(device_type());
  if (allocator == nullptr) unsupported("empty_cache", kNoStatistics);
  if (allocator->initialized()) guarded(name(), "empty_cache", [&] { allocator->emptyCache(); });
}

MemoryStats DeviceAccelerator::do_memory_stats(int index) const {
  auto* allocator = statistics_of(device_type());
  if (allocator == nullptr) unsupported("memory_stats", kNoStatistics);
  if (!allocator->initialized()) return {};  // nothing allocated yet: leave the device alone
  const auto counted = guarded(name(), "memory_stats", [&] {
    return allocator->getDeviceStats(static_cast<c10::DeviceIndex>(index));
  });
  MemoryStats stats;
  stats.allocated_bytes = counter_of(counted.allocated_bytes);
  stats.reserved_bytes = counter_of(counted.reserved_bytes);
  stats.active_bytes = counter_of(counted.active_bytes);
  stats.inactive_split_bytes = counter_of(counted.inactive_split_bytes);
  stats.requested_bytes = counter_of(counted.requested_bytes);
  stats.allocations = counter_of(counted.allocation);
  stats.active_allocations = counter_of(counted.active);
  stats.segments = counter_of(counted.segment);
  stats.inactive_splits = counter_of(counted.inactive_split);
  stats.num_alloc_retries = counted.num_alloc_retries;
  stats.num_ooms = counted.num_ooms;
  stats.num_device_allocs = counted.num_device_alloc;
  stats.num_device_frees = counted.num_device_free;
  return stats;
}

void DeviceAccelerator::do_reset_peaks(int index) const {
  auto* allocator = statistics_of(device_type());
  if (allocator == nullptr) unsupported("reset_peak_memory_stats", kNoStatistics);
  if (allocator->initialized())
    guarded(name(), "reset_peak_memory_stats",
            [&] { allocator->resetPeakStats(static_cast<c10::DeviceIndex>(index)); });
}

std::pair<int64_t, int64_t> DeviceAccelerator::do_memory_info(int index) const {
  auto* allocator = statistics_of(device_type());
  if (allocator == nullptr) unsupported("total_memory", kNoStatistics);
  return guarded(name(), "total_memory", [&] {
    at::globalContext().lazyInitDevice(device_type());
    return memory_info_of(*allocator, index);
  });
}

// --- streams and events

c10::Stream DeviceAccelerator::do_new_stream(int index, int priority) const {
  return guarded(name(), "Stream", [&] {
    at::globalContext().lazyInitDevice(device_type());
    return guard_of(device_type()).getNewStream(device_of(device_type(), index), priority);
  });
}

c10::Stream DeviceAccelerator::do_current_stream(int index) const {
  return guarded(name(), "current_stream", [&] {
    return guard_of(device_type()).getStream(device_of(device_type(), index));
  });
}

c10::Stream DeviceAccelerator::do_default_stream(int index) const {
  return guarded(name(), "default_stream", [&] {
    return guard_of(device_type()).getDefaultStream(device_of(device_type(), index));
  });
}

void DeviceAccelerator::do_set_stream(c10::Stream stream) const {
  guarded(name(), "set_stream", [&] { guard_of(device_type()).exchangeStream(stream); });
}

std::unique_ptr<detail::EventState> DeviceAccelerator::do_new_event(bool timing) const {
  return guarded(name(), "Event",
                 [&] { return std::make_unique<DeviceEvent>(name(), device_type(), timing); });
}

}  // namespace drivetrain
