// SPDX-License-Identifier: Apache-2.0
#include "sim/accelerator.h"

#include <ATen/Version.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "core/text.h"
#include "sim/memory.h"
#include "sim/settings.h"

namespace drivetrain::sim {

AcceleratorFacts SimAccelerator::row() {
  Capabilities can;
  can.properties = can.utilization = true;
  can.memory_snapshot = can.memory_fraction = true;
  return {.name = "sim",
          .type = kType,
          .communication_backend = "gloo",
          .visible_devices = "DRIVETRAIN_SIM_DEVICES",
          .priority = 900,  // before the cpu, after every real device
          .plugin = "sim",
          .driver_path = "",
          .capabilities = can};
}

DeviceProperties SimAccelerator::do_properties(int index) const {
  DeviceProperties properties;
  properties.name = core::str("simulated device ", index);
  properties.capability.level = at::get_cpu_capability();
  properties.total_memory = settings().memory_bytes;
  properties.multi_processor_count = num_cores();
  return properties;
}

double SimAccelerator::do_utilization(int index) const {
  struct Reading {
    Clock::time_point time = Clock::now();
    Clock::duration busy{0};
  };
  static std::mutex mutex;
  static std::array<Reading, kMaxDevices> readings;
  const std::lock_guard<std::mutex> lock(mutex);
  Reading& last = readings.at(static_cast<size_t>(index));
  const Reading now{Clock::now(), device(index).activity().busy()};
  const double busy = std::chrono::duration<double>(now.busy - last.busy).count();
  const double time = std::chrono::duration<double>(now.time - last.time).count();
  last = now;
  return time > 0.0 ? std::clamp(100.0 * busy / time, 0.0, 100.0) : 0.0;
}

std::vector<MemoryBlock> SimAccelerator::do_memory_snapshot(int index) const {
  std::vector<MemoryBlock> blocks;
  for (const auto& [address, bytes] : pool(index).live())
    blocks.push_back({address, static_cast<int64_t>(bytes)});
  return blocks;
}

void SimAccelerator::do_set_memory_fraction(double fraction, int index) const {
  pool(index).set_fraction(fraction);
}

}  // namespace drivetrain::sim
