// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/error.h>
#include <drivetrain/memory.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hardware/memory/record.h"

namespace drivetrain {

using Json = nlohmann::ordered_json;

namespace {

Json json_of(const MemoryCounter& counter, bool peaks) {
  // A sum below the current value is one that the backend does not keep.
  const bool sums = counter.allocated >= counter.current;
  return {{"current", counter.current},
          {"peak", peaks ? Json(counter.peak) : Json()},
          {"allocated", sums ? Json(counter.allocated) : Json()},
          {"freed", sums ? Json(counter.freed) : Json()}};
}

Json json_of(const MemoryStats& stats, bool peaks) {
  return {{"allocated_bytes", json_of(stats.allocated_bytes, peaks)},
          {"reserved_bytes", json_of(stats.reserved_bytes, peaks)},
          {"active_bytes", json_of(stats.active_bytes, peaks)},
          {"requested_bytes", json_of(stats.requested_bytes, peaks)},
          {"inactive_split_bytes", json_of(stats.inactive_split_bytes, peaks)},
          {"allocations", json_of(stats.allocations, peaks)},
          {"active_allocations", json_of(stats.active_allocations, peaks)},
          {"inactive_splits", json_of(stats.inactive_splits, peaks)},
          {"segments", json_of(stats.segments, peaks)},
          {"num_alloc_retries", stats.num_alloc_retries},
          {"num_ooms", stats.num_ooms},
          {"num_device_allocs", stats.num_device_allocs},
          {"num_device_frees", stats.num_device_frees}};
}

// As text: a JSON number of this size is rounded by many readers.
std::string hex(uint64_t address) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%" PRIx64, address);
  return text.data();
}

Json json_of(std::vector<MemoryBlock> blocks) {
  std::sort(blocks.begin(), blocks.end(),
            [](const MemoryBlock& a, const MemoryBlock& b) { return a.address < b.address; });
  Json json = Json::array();
  for (const MemoryBlock& block : blocks)
    json.push_back({{"address", hex(block.address)}, {"bytes", block.bytes}});
  return json;
}

void add_blocks(Json& json, const BaseAccelerator& accelerator, int device) {
  if (accelerator.capabilities().memory_snapshot) {
    json["blocks"] = json_of(accelerator.memory_snapshot(device));
    return;
  }
  json["blocks"] = nullptr;
  try {
    accelerator.memory_snapshot(device);
  } catch (const HardwareError& error) {
    json["no_blocks_because"] = error.what_happened();
  }
}

}  // namespace

std::string memory_snapshot_json(const BaseAccelerator& accelerator, DeviceArg device) {
  const MemoryStats stats = accelerator.memory_stats(device);  // refuses a wrong device
  const int index = device.index().value_or(accelerator.current_device());
  const Capabilities can = accelerator.capabilities();
  Json json = {
      {"format", "drivetrain.memory_snapshot"},
      {"version", 1},
      {"backend", accelerator.name()},
      {"device", index},
      {"time", hardware::time_now()},
      {"process", ::getpid()},
      {"total_bytes", can.memory_info ? Json(accelerator.total_memory(index)) : Json()},
      {"available_bytes", can.memory_info ? Json(accelerator.available_memory(index)) : Json()},
      {"stats", json_of(stats, can.memory_peaks)}};
  add_blocks(json, accelerator, index);
  return hardware::dump(json);
}

void write_memory_snapshot(const BaseAccelerator& accelerator, const std::filesystem::path& path,
                           DeviceArg device) {
  hardware::write_or_throw("write_memory_snapshot", path,
                           memory_snapshot_json(accelerator, device));
}

}  // namespace drivetrain
