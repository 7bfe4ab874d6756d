// SPDX-License-Identifier: Apache-2.0
// The part of the contract that is the same for every backend: which device is meant, what is
// refused, and what follows from the few calls that a backend implements.
#include <ATen/core/Generator.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>

#include <array>
#include <limits>
#include <mutex>

#include "core/environment.h"
#include "core/text.h"
#include "hardware/event_state.h"

namespace drivetrain {

using core::str;

namespace {

// Launchers say the local rank in different variables; torchrun's comes first.
int local_rank() {
  for (const char* name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const auto rank = core::environment_int(name, 0, std::numeric_limits<int>::max()))
      return static_cast<int>(*rank);
  return 0;
}

}  // namespace

// --- which device

std::optional<int> DeviceArg::index() const {
  // c10 writes "cpu" and "cuda", the current device of a type, as index -1.
  if (type_ && index_ == -1) return std::nullopt;
  return index_;
}

int BaseAccelerator::resolve(const char* call, const DeviceArg& device) const {
  const c10::DeviceType type = device.type().value_or(facts_.type);
  if (type != facts_.type)
    throw HardwareError(str(name(), ": ", call, " was given a device of type ",
                            c10::DeviceTypeName(type, true), "; allowed: devices of type ",
                            c10::DeviceTypeName(facts_.type, true), "; ask that backend instead"));
  const int count = device_count();
  const int index = count > 0 && !device.index() ? current_device() : device.index().value_or(0);
  if (index >= 0 && index < count) return index;
  if (count == 0)
    throw HardwareError(str(name(), ": ", call, " found no device: ", why_unavailable(),
                            "; allowed: a backend with a device; ask is_available() first"));
  throw HardwareError(str(name(), ": ", call, " was given device ", index, "; allowed: 0 to ",
                          count - 1, "; correct the index"));
}

void BaseAccelerator::unsupported(const char* call, const std::string& reason) const {
  throw HardwareError(str(name(), ": ", call, " is not supported: ", reason,
                          "; allowed: what capabilities() lists; ask it first"));
}

BaseAccelerator::BaseAccelerator(AcceleratorFacts facts) : facts_(std::move(facts)) {}
BaseAccelerator::~BaseAccelerator() = default;

std::string BaseAccelerator::repr() const {
  const std::string reason = why_unavailable();
  const int count = device_count();
  return str(name(), " (communication ", communication_backend(), ", ",
             reason.empty() ? str(count, count == 1 ? " device" : " devices") : reason, ")");
}

// --- device

c10::Device BaseAccelerator::get_current_device() const {
  return {facts_.type, static_cast<c10::DeviceIndex>(resolve("get_current_device", {}))};
}

void BaseAccelerator::set_device(DeviceArg device) {
  if (device.index() || device.type() || !support_set_device())
    return do_set_device(resolve("set_device", device));
  // A launcher may show each process one device only, whatever its local rank.
  const int rank = local_rank(), count = device_count();
  if (count > 1 && rank >= count)
    throw HardwareError(str(name(), ": local rank ", rank, " has no device of its own among ",
                            count, "; allowed: as many processes on a machine as devices; start ",
                            count, " or call set_device with an index"));
  do_set_device(resolve("set_device", count > 1 ? rank : 0));
}

std::string BaseAccelerator::get_device_name(DeviceArg device) const {
  return do_properties(resolve("get_device_name", device)).name;
}

DeviceCapability BaseAccelerator::get_device_capability(DeviceArg device) const {
  return do_properties(resolve("get_device_capability", device)).capability;
}

DeviceProperties BaseAccelerator::get_device_properties(DeviceArg device) const {
  return do_properties(resolve("get_device_properties", device));
}

double BaseAccelerator::utilization(DeviceArg device) const {
  return do_utilization(resolve("utilization", device));
}

void BaseAccelerator::synchronize(DeviceArg device) const {
  do_synchronize(resolve("synchronize", device));
}

void BaseAccelerator::set_to_device(torch::nn::Module& module) const {
  move_module_(module, get_current_device());
}

void BaseAccelerator::set_to_device(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules) const {
  for (const auto& module : modules) move_module_(*module, get_current_device());
}

at::Tensor BaseAccelerator::pin_memory(const at::Tensor& tensor) const {
  const bool can_be_pinned = tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided;
  return can_be_pinned && capabilities().pinned_memory ? do_pin_memory(tensor) : tensor;
}

// --- random numbers

at::Tensor BaseAccelerator::get_rng_state(DeviceArg device) const {
  at::Generator generator = do_generator(resolve("get_rng_state", device));
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void BaseAccelerator::set_rng_state(const at::Tensor& state, DeviceArg device) const {
  at::Generator generator = do_generator(resolve("set_rng_state", device));
  const std::lock_guard<std::mutex> lock(generator.mutex());
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw HardwareError(str(name(), ": set_rng_state was given a tensor that is no state: ",
                            error.what_without_backtrace(),
                            "; allowed: what get_rng_state returned for this backend; pass that"));
  }
}

std::vector<at::Tensor> BaseAccelerator::get_rng_state_all() const {
  const int count = device_count();
  std::vector<at::Tensor> states;
  states.reserve(static_cast<size_t>(count));
  for (int index = 0; index < count; ++index) states.push_back(get_rng_state(index));
  return states;
}

void BaseAccelerator::set_rng_state_all(const std::vector<at::Tensor>& states) const {
  if (static_cast<int>(states.size()) != device_count())
    throw HardwareError(str(name(), ": set_rng_state_all was given ", states.size(),
                            " states; allowed: one for each of the ", device_count(),
                            " devices; restore on as many devices as were saved"));
  for (int index = 0; index < device_count(); ++index) set_rng_state(states[index], index);
}

void BaseAccelerator::manual_seed(uint64_t seed) const {
  at::Generator generator = do_generator(resolve("manual_seed", {}));
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

void BaseAccelerator::manual_seed_all(uint64_t seed) const {
  for (int index = 0; index < device_count(); ++index) {
    at::Generator generator = do_generator(index);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

uint64_t BaseAccelerator::seed() const {
  at::Generator generator = do_generator(resolve("seed", {}));
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.seed();
}

uint64_t BaseAccelerator::seed_all() const {
  const uint64_t seed = this->seed();
  manual_seed_all(seed);
  return seed;
}

uint64_t BaseAccelerator::initial_seed() const {
  at::Generator generator = do_generator(resolve("initial_seed", {}));
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.current_seed();
}

// --- memory

void BaseAccelerator::empty_cache() const { do_empty_cache(); }

MemoryStats BaseAccelerator::memory_stats(DeviceArg device) const {
  return do_memory_stats(resolve("memory_stats", device));
}

std::vector<MemoryBlock> BaseAccelerator::memory_snapshot(DeviceArg device) const {
  return do_memory_snapshot(resolve("memory_snapshot", device));
}

int64_t BaseAccelerator::memory_allocated(DeviceArg device) const {
  return do_memory_stats(resolve("memory_allocated", device)).allocated_bytes.current;
}

int64_t BaseAccelerator::max_memory_allocated(DeviceArg device) const {
  const int index = resolve("max_memory_allocated", device);
  if (!capabilities().memory_peaks) unsupported("max_memory_allocated", "it records no peaks");
  return do_memory_stats(index).allocated_bytes.peak;
}

int64_t BaseAccelerator::memory_reserved(DeviceArg device) const {
  return do_memory_stats(resolve("memory_reserved", device)).reserved_bytes.current;
}

int64_t BaseAccelerator::max_memory_reserved(DeviceArg device) const {
  const int index = resolve("max_memory_reserved", device);
  if (!capabilities().memory_peaks) unsupported("max_memory_reserved", "it records no peaks");
  return do_memory_stats(index).reserved_bytes.peak;
}

void BaseAccelerator::reset_max_memory_allocated(DeviceArg device) const {
  do_reset_peaks(resolve("reset_max_memory_allocated", device));
}

void BaseAccelerator::reset_max_memory_cached(DeviceArg device) const {
  do_reset_peaks(resolve("reset_max_memory_cached", device));
}

void BaseAccelerator::reset_peak_memory_stats(DeviceArg device) const {
  do_reset_peaks(resolve("reset_peak_memory_stats", device));
}

void BaseAccelerator::set_per_process_memory_fraction(double fraction, DeviceArg device) const {
  const int index = resolve("set_per_process_memory_fraction", device);
  if (!(fraction >= 0.0 && fraction <= 1.0))
    throw HardwareError(str(name(), ": set_per_process_memory_fraction was given ", fraction,
                            "; allowed: 0 to 1; pass a part of total_memory()"));
  do_set_memory_fraction(fraction, index);
}

int64_t BaseAccelerator::total_memory(DeviceArg device) const {
  return do_memory_info(resolve("total_memory", device)).second;
}

int64_t BaseAccelerator::available_memory(DeviceArg device) const {
  return do_memory_info(resolve("available_memory", device)).first;
}

// --- streams, events, autocast

c10::Stream BaseAccelerator::Stream(DeviceArg device, int priority) const {
  return do_new_stream(resolve("Stream", device), priority);
}

drivetrain::Event BaseAccelerator::Event(bool enable_timing, bool blocking,
                                         bool interprocess) const {
  const Capabilities can = capabilities();
  if (blocking && !can.blocking_events)
    unsupported("Event", "LibTorch's device-generic events cannot be made blocking");
  if (interprocess && !can.interprocess_events)
    unsupported("Event", "LibTorch's device-generic events cannot be shared between processes");
  return drivetrain::Event(do_new_event(enable_timing));
}

c10::Stream BaseAccelerator::current_stream(DeviceArg device) const {
  return do_current_stream(resolve("current_stream", device));
}

c10::Stream BaseAccelerator::default_stream(DeviceArg device) const {
  return do_default_stream(resolve("default_stream", device));
}

void BaseAccelerator::set_stream(c10::Stream stream) const {
  resolve("set_stream", stream.device());
  do_set_stream(stream);
}

StreamGuard BaseAccelerator::stream(std::optional<c10::Stream> stream) const {
  return StreamGuard(*this, stream);
}

Autocast BaseAccelerator::autocast(bool enabled, std::optional<at::ScalarType> dtype,
                                   bool cache_enabled) const {
  if (!capabilities().autocast) unsupported("autocast", "it has no autocast");
  return Autocast(facts_.type, enabled, dtype, cache_enabled);
}

StreamGuard::StreamGuard(const BaseAccelerator& accelerator, std::optional<c10::Stream> stream)
    : accelerator_(accelerator), keep_alive_(accelerator.weak_from_this().lock()) {
  if (!stream) return;
  const int index = accelerator.resolve("stream", stream->device());
  previous_device_ = accelerator.current_device();
  previous_ = accelerator.current_stream(index);
  if (index != previous_device_) accelerator.do_set_device(index);
  accelerator.do_set_stream(*stream);
}

StreamGuard::~StreamGuard() {
  if (!previous_) return;
  accelerator_.do_set_stream(*previous_);
  if (accelerator_.current_device() != previous_device_)
    accelerator_.do_set_device(previous_device_);
}

Event::Event(std::unique_ptr<detail::EventState> state) : state_(std::move(state)) {}
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
Event::~Event() = default;
void Event::record(std::optional<c10::Stream> stream) { state_->record(stream); }
void Event::wait(std::optional<c10::Stream> stream) const { state_->wait(stream); }
bool Event::query() const { return state_->query(); }
void Event::synchronize() const { state_->synchronize(); }
double Event::elapsed_time(const Event& end) const { return state_->elapsed_ms(*end.state_); }

// --- what a backend has not implemented

namespace {
constexpr const char* kNotImplemented = "this backend does not implement it";
}

void BaseAccelerator::do_set_device(int) const { unsupported("set_device", kNotImplemented); }
DeviceProperties BaseAccelerator::do_properties(int) const {
  unsupported("get_device_properties",
              "LibTorch has no device-generic query for names and properties");
}
double BaseAccelerator::do_utilization(int) const {
  unsupported("utilization", "LibTorch has no device-generic query for it");
}
void BaseAccelerator::do_synchronize(int) const { unsupported("synchronize", kNotImplemented); }
at::Generator BaseAccelerator::do_generator(int) const {
  unsupported("get_rng_state", kNotImplemented);
}
void BaseAccelerator::do_empty_cache() const { unsupported("empty_cache", kNotImplemented); }
MemoryStats BaseAccelerator::do_memory_stats(int) const {
  unsupported("memory_stats", kNotImplemented);
}
void BaseAccelerator::do_reset_peaks(int) const {
  unsupported("reset_peak_memory_stats", kNotImplemented);
}
std::vector<MemoryBlock> BaseAccelerator::do_memory_snapshot(int) const {
  unsupported("memory_snapshot", "LibTorch has no device-generic snapshot");
}
void BaseAccelerator::do_set_memory_fraction(double, int) const {
  unsupported("set_per_process_memory_fraction",
              "LibTorch has no device-generic limit, but its allocators read one at the start from "
              "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5 where they know the option");
}
std::pair<int64_t, int64_t> BaseAccelerator::do_memory_info(int) const {
  unsupported("total_memory", kNotImplemented);
}
c10::Stream BaseAccelerator::do_new_stream(int, int) const {
  unsupported("Stream", kNotImplemented);
}
c10::Stream BaseAccelerator::do_current_stream(int) const {
  unsupported("current_stream", kNotImplemented);
}
c10::Stream BaseAccelerator::do_default_stream(int) const {
  unsupported("default_stream", kNotImplemented);
}
void BaseAccelerator::do_set_stream(c10::Stream) const {
  unsupported("set_stream", kNotImplemented);
}
std::unique_ptr<detail::EventState> BaseAccelerator::do_new_event(bool) const {
  unsupported("Event", kNotImplemented);
}

}  // namespace drivetrain
