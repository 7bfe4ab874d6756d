// SPDX-License-Identifier: Apache-2.0
// A device's memory now: as a table, and as a JSON document that a parser reads back.
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <drivetrain/memory.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "memory_models.h"

namespace drivetrain {
namespace {

using nlohmann::json;
using testing::Folder;
using testing::read;
using testing::ScriptedAccelerator;

MemoryStats some_stats() {
  MemoryStats stats;
  stats.allocated_bytes = {1024, 2048, 4096, 3072};
  stats.reserved_bytes = {2 << 20, 3 << 20, 0, 0};  // no sums
  stats.inactive_split_bytes = {512, 512, 600, 88};
  stats.allocations = {3, 7, 1000, 997};
  stats.segments = {1, 2, 2, 1};
  stats.num_ooms = 5;
  stats.num_device_allocs = 11;
  return stats;
}

TEST(MemorySummary, IsAnAlignedTableWithUnits) {
  ScriptedAccelerator accelerator;
  accelerator.stats = some_stats();
  EXPECT_EQ(accelerator.memory_summary(1),
            "scripted:1 memory: 1.0 MiB available of 4.0 MiB\n"
            "                    current     peak  allocated    freed\n"
            "allocated           1.0 KiB  2.0 KiB    4.0 KiB  3.0 KiB\n"
            "reserved            2.0 MiB  3.0 MiB          -        -\n"
            "active                  0 B      0 B        0 B      0 B\n"
            "requested               0 B      0 B        0 B      0 B\n"
            "inactive split        512 B    512 B      600 B     88 B\n"
            "allocations               3        7       1000      997\n"
            "active allocations        0        0          0        0\n"
            "inactive splits           0        0          0        0\n"
            "segments                  1        2          2        1\n"
            "out of memory 5 times, retried after a flush 0 times\n"
            "calls of the device's own allocator: 11 to allocate, 0 to free\n");
}

TEST(MemorySummary, AbbreviatedHasTheMainLines) {
  ScriptedAccelerator accelerator({.memory_peaks = false, .memory_info = false});
  accelerator.stats = some_stats();
  EXPECT_EQ(accelerator.memory_summary(0, true),
            "scripted:0 memory\n"
            "             current  peak  allocated    freed\n"
            "allocated    1.0 KiB     -    4.0 KiB  3.0 KiB\n"
            "reserved     2.0 MiB     -          -        -\n"
            "allocations        3     -       1000      997\n"
            "out of memory 5 times, retried after a flush 0 times\n");
}

TEST(MemorySnapshot, ListsEveryLiveBlockOfTheCpu) {
  const CpuAccelerator cpu;
  cpu.memory_stats();
  const auto block = torch::empty({12345}, torch::kUInt8);
  const json document = json::parse(memory_snapshot_json(cpu));
  EXPECT_EQ(document["format"], "drivetrain.memory_snapshot");
  EXPECT_EQ(document["version"], 1);
  EXPECT_EQ(document["backend"], "cpu");
  EXPECT_EQ(document["device"], 0);
  EXPECT_EQ(document["process"], ::getpid());
  EXPECT_EQ(document["total_bytes"], cpu.total_memory());
  EXPECT_THAT(document["time"].get<std::string>(), ::testing::MatchesRegex("20..-..-..T..:..:..Z"));
  int64_t sum = 0, found = 0;
  std::string previous;
  for (const json& entry : document["blocks"]) {
    sum += entry["bytes"].get<int64_t>();
    const auto address = std::stoull(entry["address"].get<std::string>(), nullptr, 16);
    if (address == reinterpret_cast<uintptr_t>(block.data_ptr())) {
      ++found;
      EXPECT_EQ(entry["bytes"], 12345);
    }
  }
  EXPECT_EQ(found, 1);
  EXPECT_EQ(document["stats"]["allocated_bytes"]["current"], sum);
  EXPECT_EQ(document["stats"]["allocations"]["current"], document["blocks"].size());
}

TEST(MemorySnapshot, SaysWhatABackendDoesNotTell) {
  ScriptedAccelerator accelerator({.memory_peaks = false, .memory_info = false});
  accelerator.stats = some_stats();
  const json document = json::parse(memory_snapshot_json(accelerator, 1));
  EXPECT_EQ(document["device"], 1);
  EXPECT_TRUE(document["blocks"].is_null());
  EXPECT_THAT(document["no_blocks_because"].get<std::string>(),
              ::testing::HasSubstr("scripted: memory_snapshot is not supported"));
  EXPECT_TRUE(document["total_bytes"].is_null());
  EXPECT_EQ(document["stats"]["allocated_bytes"],
            json({{"current", 1024}, {"peak", nullptr}, {"allocated", 4096}, {"freed", 3072}}));
  EXPECT_TRUE(document["stats"]["reserved_bytes"]["allocated"].is_null());
  EXPECT_EQ(document["stats"]["num_device_allocs"], 11);
}

TEST(MemorySnapshot, IsWrittenToAFile) {
  const CpuAccelerator cpu;
  const Folder folder;
  write_memory_snapshot(cpu, folder / "snapshot.json");
  EXPECT_EQ(json::parse(read(folder / "snapshot.json"))["backend"], "cpu");
  EXPECT_ERROR(write_memory_snapshot(cpu, folder / "no" / "a.json"), HardwareError,
               "hardware: write_memory_snapshot: ");
  EXPECT_ERROR(write_memory_snapshot(cpu, folder / "no" / "a.json"), HardwareError,
               "/no/a.json could not be written: No such file or directory; allowed: a file in a "
               "folder that exists");
}

TEST(MemorySnapshot, OfAWrongDeviceIsRefused) {
  const CpuAccelerator cpu;
  EXPECT_ERROR(memory_snapshot_json(cpu, 1), HardwareError, "was given device 1");
  const ScriptedAccelerator none({.memory_stats = false});
  EXPECT_ERROR(memory_snapshot_json(none), HardwareError, "memory_stats is not supported");
}

}  // namespace
}  // namespace drivetrain
