// SPDX-License-Identifier: Apache-2.0
// What the tests of memory share: a backend whose counters the test sets, folders and files.
#pragma once

#include <drivetrain/hardware.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace drivetrain::testing {

// Two devices of the CPU's type. Counts the calls.
class ScriptedAccelerator final : public BaseAccelerator {
 public:
  explicit ScriptedAccelerator(Capabilities can = {}) : BaseAccelerator(facts_of(can)) {}

  int device_count() const override { return 2; }

  MemoryStats stats;
  mutable std::map<std::string, int> calls;

 protected:
  void do_synchronize(int) const override { ++calls["synchronize"]; }
  MemoryStats do_memory_stats(int) const override {
    ++calls["stats"];
    if (!capabilities().memory_stats) unsupported("memory_stats", "it counts nothing");
    return stats;
  }
  void do_reset_peaks(int) const override { ++calls["reset"]; }
  std::pair<int64_t, int64_t> do_memory_info(int) const override {
    ++calls["info"];
    return {1 << 20, 4 << 20};
  }

 private:
  static AcceleratorFacts facts_of(const Capabilities& can) {
    AcceleratorFacts facts;
    facts.name = "scripted";
    facts.type = c10::DeviceType::CPU;
    facts.capabilities = can;
    return facts;
  }
};

// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() { std::filesystem::create_directories(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_ = std::filesystem::path(::testing::TempDir()) /
                                ("drivetrain_memory_" + std::to_string(::getpid()));
};

inline std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace drivetrain::testing
