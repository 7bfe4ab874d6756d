// SPDX-License-Identifier: Apache-2.0
// The counters of a device's memory as a table.
#include <drivetrain/hardware.h>

#include "core/sizes.h"
#include "core/table.h"
#include "core/text.h"

namespace drivetrain {

using core::str;

namespace {

using Row = std::vector<std::string>;
using Format = std::string (*)(int64_t);

std::string count(int64_t value) { return str(value); }

// A sum since the start is not below what is there now: where it is, the backend keeps none.
Row row(const char* what, const MemoryCounter& counter, bool peaks, Format format) {
  const bool sums = counter.allocated >= counter.current;
  const auto cell = [&](bool known, int64_t value) { return known ? format(value) : "-"; };
  return {what, format(counter.current), cell(peaks, counter.peak), cell(sums, counter.allocated),
          cell(sums, counter.freed)};
}

std::vector<Row> rows_of(const MemoryStats& stats, bool peaks, bool abbreviated) {
  const auto bytes = [&](const char* what, const MemoryCounter& counter) {
    return row(what, counter, peaks, core::format_bytes);
  };
  const auto number = [&](const char* what, const MemoryCounter& counter) {
    return row(what, counter, peaks, count);
  };
  std::vector<Row> rows = {{"", "current", "peak", "allocated", "freed"},
                           bytes("allocated", stats.allocated_bytes),
                           bytes("reserved", stats.reserved_bytes)};
  if (abbreviated) {
    rows.push_back(number("allocations", stats.allocations));
    return rows;
  }
  rows.insert(
      rows.end(),
      {bytes("active", stats.active_bytes), bytes("requested", stats.requested_bytes),
       bytes("inactive split", stats.inactive_split_bytes),
       number("allocations", stats.allocations),
       number("active allocations", stats.active_allocations),
       number("inactive splits", stats.inactive_splits), number("segments", stats.segments)});
  return rows;
}

std::string calls(const MemoryStats& stats, bool abbreviated) {
  std::string text = str("out of memory ", stats.num_ooms, " times, retried after a flush ",
                         stats.num_alloc_retries, " times\n");
  if (!abbreviated)
    text += str("calls of the device's own allocator: ", stats.num_device_allocs, " to allocate, ",
                stats.num_device_frees, " to free\n");
  return text;
}

}  // namespace

std::string BaseAccelerator::memory_summary(DeviceArg device, bool abbreviated) const {
  const int index = resolve("memory_summary", device);
  const MemoryStats stats = do_memory_stats(index);
  const Capabilities can = capabilities();
  std::string text = str(name(), ":", index, " memory");
  if (can.memory_info) {
    const auto [available, total] = do_memory_info(index);
    text += str(": ", core::format_bytes(available), " available of ", core::format_bytes(total));
  }
  return text + "\n" + core::table(rows_of(stats, can.memory_peaks, abbreviated)) +
         calls(stats, abbreviated);
}

}  // namespace drivetrain
