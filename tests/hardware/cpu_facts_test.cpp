// SPDX-License-Identifier: Apache-2.0
// /proc and control groups of machines laid out in a temporary directory.
#include "hardware/cpu_facts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace drivetrain::hardware {
namespace {

constexpr int64_t kMiB = 1 << 20;

class Machine : public ::testing::Test {
 protected:
  Machine() {
    std::string pattern = (std::filesystem::temp_directory_path() / "machine.XXXXXX").string();
    root = mkdtemp(pattern.data());
    put("/proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n");
  }
  ~Machine() override { std::filesystem::remove_all(root); }

  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }

  std::string root;
};

TEST_F(Machine, WithoutGroupsHasItsOwnMemory) {
  const MemoryInfo info = memory_info(root);
  EXPECT_EQ(info.total, 8192 * kMiB);
  EXPECT_EQ(info.available, 4096 * kMiB);
  EXPECT_FALSE(cpu_quota(root));
}

TEST_F(Machine, OfOldKernelsCountsFreeMemory) {
  put("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\n");
  EXPECT_EQ(memory_info(root).available, 300 * 1024);
}

TEST_F(Machine, IsCutByAVersion2Group) {
  put("/proc/self/cgroup", "0::/job\n");
  put("/sys/fs/cgroup/job/memory.max", "1073741824\n");
  put("/sys/fs/cgroup/job/memory.current", "629145600\n");
  put("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 104857600\n");
  put("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(memory_info(root).total, 1024 * kMiB);
  EXPECT_EQ(memory_info(root).available, 1024 * kMiB - 500 * kMiB);
  EXPECT_DOUBLE_EQ(cpu_quota(root).value(), 1.5);
}

TEST_F(Machine, IsCutByTheTightestGroupAround) {
  put("/proc/self/cgroup", "0::/slice/job\n");
  put("/sys/fs/cgroup/slice/job/memory.max", "max\n");
  put("/sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
  put("/sys/fs/cgroup/slice/memory.max", "2147483648\n");
  put("/sys/fs/cgroup/slice/memory.current", "0\n");
  put("/sys/fs/cgroup/slice/cpu.max", "400000 100000\n");
  EXPECT_EQ(memory_info(root).total, 2048 * kMiB);
  EXPECT_EQ(memory_info(root).available, 2048 * kMiB);
  EXPECT_DOUBLE_EQ(cpu_quota(root).value(), 4.0);
}

TEST_F(Machine, IsCutByAVersion1Group) {
  put("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n");
  // A container sees its group at the mount's root.
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "600000000\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(memory_info(root).total, 512 * kMiB);
  EXPECT_EQ(memory_info(root).available, 0);
  EXPECT_DOUBLE_EQ(cpu_quota(root).value(), 0.5);
}

TEST_F(Machine, WithUnlimitedVersion1GroupsIsNotCut) {
  put("/proc/self/cgroup", "4:memory:/\n3:cpu:/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(memory_info(root).total, 8192 * kMiB);
  EXPECT_EQ(memory_info(root).available, 4096 * kMiB);
  EXPECT_FALSE(cpu_quota(root));
}

TEST_F(Machine, TellsBusyTimeOfTheCoresAsked) {
  put("/proc/stat",
      "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 1 2 80 7 0 0 0 0 0\ncpu1 50 0 0 50 0 0 0 0 0 0\nintr 1\n");
  EXPECT_EQ(cpu_times({0}, root).busy, 13);
  EXPECT_EQ(cpu_times({0}, root).total, 100);
  EXPECT_EQ(cpu_times({0, 1}, root).busy, 63);
  EXPECT_EQ(cpu_times({0, 1}, root).total, 200);
}

TEST_F(Machine, NamesItsProcessor) {
  put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7R13\nflags\t\t: fpu avx2\n");
  EXPECT_EQ(cpu_name(root), "AMD EPYC 7R13");
  EXPECT_EQ(cpu_features(root), (std::vector<std::string>{"fpu", "avx2"}));
}

TEST_F(Machine, WithoutAModelNamesItsArchitecture) {
  put("/proc/cpuinfo", "processor : 0\nFeatures : fp asimd\n");
  EXPECT_FALSE(cpu_name(root).empty());
  EXPECT_EQ(cpu_features(root), (std::vector<std::string>{"fp", "asimd"}));
}

TEST(Cores, AreAffinityCutByQuotaAndAtLeastOne) {
  EXPECT_EQ(usable_cores(8, std::nullopt), 8);
  EXPECT_EQ(usable_cores(8, 2.5), 2);
  EXPECT_EQ(usable_cores(8, 0.5), 1);
  EXPECT_EQ(usable_cores(2, 16.0), 2);
  EXPECT_EQ(usable_cores(0, std::nullopt), 1);
  EXPECT_GE(allowed_cores().size(), 1u);
}

TEST(Proc, TellsTheResidentSet) {
  EXPECT_GT(proc_bytes("self/status", "VmRSS").value(), 1 << 20);
  EXPECT_FALSE(proc_bytes("self/status", "VmNothing"));
  EXPECT_FALSE(proc_bytes("nothing", "VmRSS"));
}

}  // namespace
}  // namespace drivetrain::hardware
