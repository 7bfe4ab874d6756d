// SPDX-License-Identifier: Apache-2.0
// The CPU as an accelerator: one device that does its work at once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Version.h>
#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/text.h"
#include "hardware/counting_allocator.h"
#include "hardware/cpu_facts.h"
#include "hardware/event_state.h"
#include "hardware/table.h"

namespace drivetrain {

using core::str;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kShortestSample = std::chrono::milliseconds(50);

int64_t resident_bytes() { return hardware::proc_bytes("self/status", "VmRSS").value_or(0); }

// The peak of the resident set: the kernel's, or, once it has refused to reset that, the largest
// value seen by a call since.
class ResidentPeak {
 public:
  int64_t get(int64_t resident) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sampled_ = std::max(sampled_, resident);
    if (by_sampling_) return sampled_;
    return std::max(hardware::proc_bytes("self/status", "VmHWM").value_or(sampled_), resident);
  }

  void reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    by_sampling_ = !hardware::reset_peak_resident();
    sampled_ = resident_bytes();
  }

 private:
  std::mutex mutex_;
  bool by_sampling_ = false;
  int64_t sampled_ = 0;
};

ResidentPeak& resident_peak() {
  static ResidentPeak peak;
  return peak;
}

struct Sample {
  hardware::CpuTimes times;
  Clock::time_point at;
};

Sample sample(const std::vector<int>& cores) { return {hardware::cpu_times(cores), Clock::now()}; }

c10::Stream cpu_stream(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCPU), id);
}

thread_local c10::StreamId current_stream_id = 0;

void refuse_other_devices(const char* call, const std::optional<c10::Stream>& stream) {
  if (stream && stream->device_type() != c10::kCPU)
    throw HardwareError(str("cpu: Event.", call, " was given a stream of ", stream->device().str(),
                            "; allowed: streams of the event's own device type; make the event "
                            "with that backend"));
}

struct CpuEvent final : detail::EventState {
  explicit CpuEvent(bool timing) : timing(timing) {}

  void record(std::optional<c10::Stream> stream) override {
    refuse_other_devices("record", stream);
    recorded = Clock::now();
  }
  void wait(std::optional<c10::Stream> stream) const override {
    refuse_other_devices("wait", stream);
  }
  bool query() const override { return true; }
  void synchronize() const override {}

  double elapsed_ms(const EventState& end) const override {
    const auto* other = dynamic_cast<const CpuEvent*>(&end);
    if (other == nullptr || !timing || !other->timing || !recorded || !other->recorded)
      throw HardwareError(
          "cpu: Event.elapsed_time was asked of an event without timing, not recorded, or of "
          "another backend; allowed: two recorded events made with enable_timing = true; make and "
          "record them so");
    return std::chrono::duration<double, std::milli>(*other->recorded - *recorded).count();
  }

  const bool timing;
  std::optional<Clock::time_point> recorded;
};

}  // namespace

CpuAccelerator::CpuAccelerator() : CpuAccelerator(hardware::builtin_facts("cpu")) {}
CpuAccelerator::CpuAccelerator(AcceleratorFacts facts) : BaseAccelerator(std::move(facts)) {}

// --- device

c10::Device CpuAccelerator::get_current_device() const { return c10::Device(c10::kCPU); }
void CpuAccelerator::do_set_device(int) const {}
void CpuAccelerator::do_synchronize(int) const {}

DeviceProperties CpuAccelerator::do_properties(int) const {
  return {.name = hardware::cpu_name(),
          .capability = {.major = 0, .minor = 0, .level = at::get_cpu_capability()},
          .total_memory = hardware::memory_info().total,
          .multi_processor_count = num_cores(),
          .features = hardware::cpu_features()};
}

double CpuAccelerator::do_utilization(int) const {
  static std::mutex mutex;
  static std::optional<Sample> last;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::vector<int> cores = hardware::allowed_cores();
  if (!last || Clock::now() - last->at < kShortestSample) {
    last = sample(cores);
    std::this_thread::sleep_for(kShortestSample);
  }
  const Sample now = sample(cores);
  const auto total = static_cast<double>(now.times.total - last->times.total);
  const auto busy = static_cast<double>(now.times.busy - last->times.busy);
  last = now;
  return total > 0 ? std::clamp(100.0 * busy / total, 0.0, 100.0) : 0.0;
}

int num_cores() {
  return hardware::usable_cores(static_cast<int>(hardware::allowed_cores().size()),
                                hardware::cpu_quota());
}

// --- random numbers

at::Generator CpuAccelerator::do_generator(int) const {
  return at::detail::getDefaultCPUGenerator();
}

// --- memory

void CpuAccelerator::do_empty_cache() const {
#ifdef __GLIBC__
  // Where another allocator has taken malloc's place, the first call sets up glibc's own, which
  // two threads must not do at once.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  malloc_trim(0);
#endif
}

MemoryStats CpuAccelerator::do_memory_stats(int) const {
  const std::string reason = hardware::install_counting_allocator();
  if (!reason.empty()) unsupported("memory_stats", reason);
  MemoryStats stats = hardware::counted_memory();
  stats.reserved_bytes.current = resident_bytes();
  stats.reserved_bytes.peak = resident_peak().get(stats.reserved_bytes.current);
  return stats;
}

void CpuAccelerator::do_reset_peaks(int) const {
  // Whoever resets a peak will ask for it. Where nothing can be counted, that call says why.
  (void)hardware::install_counting_allocator();
  hardware::reset_counted_peak();
  resident_peak().reset();
}

std::vector<MemoryBlock> CpuAccelerator::do_memory_snapshot(int) const {
  const std::string reason = hardware::install_counting_allocator();
  if (!reason.empty()) unsupported("memory_snapshot", reason);
  return hardware::counted_blocks();
}

void CpuAccelerator::do_set_memory_fraction(double fraction, int) const {
  const std::string reason = hardware::install_counting_allocator();
  if (!reason.empty()) unsupported("set_per_process_memory_fraction", reason);
  const auto total = static_cast<double>(hardware::memory_info().total);
  hardware::limit_counted_memory(static_cast<int64_t>(total * fraction));
}

std::pair<int64_t, int64_t> CpuAccelerator::do_memory_info(int) const {
  const hardware::MemoryInfo info = hardware::memory_info();
  return {info.available, info.total};
}

// --- streams and events

c10::Stream CpuAccelerator::do_new_stream(int, int) const {
  static std::atomic<c10::StreamId> last{0};
  return cpu_stream(++last);
}

c10::Stream CpuAccelerator::do_current_stream(int) const { return cpu_stream(current_stream_id); }
c10::Stream CpuAccelerator::do_default_stream(int) const { return cpu_stream(0); }
void CpuAccelerator::do_set_stream(c10::Stream stream) const { current_stream_id = stream.id(); }

std::unique_ptr<detail::EventState> CpuAccelerator::do_new_event(bool timing) const {
  return std::make_unique<CpuEvent>(timing);
}

namespace hardware {

Backend cpu_backend() {
  AcceleratorFacts facts = native_facts("cpu", c10::DeviceType::CPU, "gloo", 1000);
  facts.capabilities.set_device = false;
  facts.capabilities.properties = facts.capabilities.utilization = true;
  facts.capabilities.memory_snapshot = facts.capabilities.memory_fraction = true;
  facts.capabilities.pinned_memory = false;
  facts.capabilities.blocking_events = true;
  facts.capabilities.synchronous = true;
  return {facts, make<CpuAccelerator>};
}

}  // namespace hardware
}  // namespace drivetrain
