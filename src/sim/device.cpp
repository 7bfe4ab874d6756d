// SPDX-License-Identifier: Apache-2.0
#include "sim/device.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "core/text.h"
#include "sim/kernel_thread.h"
#include "sim/settings.h"

namespace drivetrain::sim {
namespace {

// Never destroyed: tensors may be freed until the very end of the process.
struct Process {
  Settings settings;
  std::mutex mutex;
  std::array<std::atomic<SimDevice*>, kMaxDevices> devices{};
  std::atomic<bool> broken{false};
};

Process& process() {
  static auto* instance = new Process;
  return *instance;
}

thread_local c10::DeviceIndex this_threads_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> this_threads_streams{};

}  // namespace

SimDevice::SimDevice(int index, const Settings& settings) : index_(index), settings_(settings) {
  for (c10::StreamId id = 0; id < kStreams; ++id)
    queues_.at(static_cast<size_t>(id)) =
        std::make_unique<Queue>(core::str(name(), ", stream ", id), activity_, id > kPool);
}

std::string SimDevice::name() const { return core::str("sim:", index_); }

Arena& SimDevice::arena() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!arena_)
    arena_ =
        std::make_unique<Arena>(static_cast<size_t>(settings_.memory_bytes), settings_.protect);
  return *arena_;
}

Queue& SimDevice::queue(c10::StreamId id) {
  TORCH_CHECK(id >= 0 && id < kStreams, name(), " has no stream ", id);
  return *queues_[static_cast<size_t>(id)];
}

c10::StreamId SimDevice::new_stream(bool urgent) {
  const c10::StreamId turn = last_.at(urgent ? 1 : 0)++ % kPool;
  return 1 + (urgent ? kPool : 0) + turn;
}

bool SimDevice::idle() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue->idle(); });
}

void SimDevice::drain() {
  for (const auto& queue : queues_) queue->drain();
}

void SimDevice::synchronize() {
  drain();
  for (const auto& queue : queues_) queue->rethrow();
}

void SimDevice::stop() {
  for (const auto& queue : queues_) queue->stop();
}

void SimDevice::join() {
  for (const auto& queue : queues_) queue->join();
}

void SimDevice::transfer(Queue& queue, Way way, int64_t bytes, Clock::time_point start) {
  if (settings_.bandwidth == 0) return;
  const auto length = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
      static_cast<double>(bytes) / static_cast<double>(settings_.bandwidth)));
  Clock::time_point end;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& free = link_free_.at(way == Way::in ? 0 : 1);
    end = free = std::max(free, start) + length;
  }
  queue.nap_until(end);
}

const Settings& settings() { return process().settings; }
void set_settings(const Settings& settings) { process().settings = settings; }

SimDevice& device(int index) {
  Process& p = process();
  TORCH_CHECK(index >= 0 && index < p.settings.devices, "there is no device sim:", index,
              "; allowed: 0 to ", p.settings.devices - 1);
  auto& place = p.devices.at(static_cast<size_t>(index));
  if (SimDevice* known = place.load()) return *known;
  const std::lock_guard<std::mutex> lock(p.mutex);
  if (place.load() == nullptr) place = new SimDevice(index, p.settings);
  return *place.load();
}

bool is_touched(int index) {
  return process().devices.at(static_cast<size_t>(index)).load() != nullptr;
}

int current_device() { return this_threads_device; }

void set_current_device(c10::Device device) {
  const c10::DeviceIndex index = device.index();
  if (index < 0) return;  // "sim": the current one
  TORCH_CHECK(device.type() == kType, "expected a sim device, but got ", device);
  TORCH_CHECK(index < settings().devices, "there is no device sim:", +index, "; allowed: 0 to ",
              settings().devices - 1);
  this_threads_device = index;
}

c10::Stream current_stream(int index) {
  if (index < 0) index = current_device();
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(index)),
                     this_threads_streams.at(static_cast<size_t>(index)));
}

void set_current_stream(c10::Stream stream) {
  queue_of(stream);  // or there is no such stream
  this_threads_streams.at(static_cast<size_t>(stream.device_index())) = stream.id();
}

Queue& queue_of(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == kType, "expected a stream of a sim device, but got one of ",
              stream.device());
  return device(stream.device_index()).queue(stream.id());
}

Queue& current_queue(int index) { return queue_of(current_stream(index)); }

void check_driver() { TORCH_CHECK(!process().broken, "simulated driver error 700"); }

void break_driver(bool broken) { process().broken = broken; }

void stop_all() {
  if (in_child()) return;  // its parent's threads
  const auto each = [](void (SimDevice::*act)()) {
    for (auto& place : process().devices)
      if (SimDevice* known = place.load()) (known->*act)();
  };
  each(&SimDevice::stop);
  each(&SimDevice::join);
}

}  // namespace drivetrain::sim
