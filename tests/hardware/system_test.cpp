// SPDX-License-Identifier: Apache-2.0
#include "hardware/facts/system.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include "made_machine.h"

namespace drivetrain::hardware {
namespace {

class System : public MadeMachine {};

TEST(CoreList, IsCountedAsTheKernelWritesIt) {
  EXPECT_EQ(count_cores("0-3,8\n"), 5);
  EXPECT_EQ(count_cores("0"), 1);
  EXPECT_EQ(count_cores("0-255"), 256);
  EXPECT_EQ(count_cores(""), 0);
}

TEST_F(System, IsReadFromItsFiles) {
  put("/etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  put("/proc/cpuinfo", "processor : 0\nmodel name : A fast one\n");
  put("/proc/meminfo", "MemTotal: 1024 kB\nMemAvailable: 512 kB\n");
  put("/sys/devices/system/cpu/online", "0-6\n");
  put("/proc/self/cgroup", "0::/\n");
  put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  put("/sys/fs/cgroup/memory.max", "524288\n");
  put("/dev/infiniband/uverbs0");
  const SystemFacts facts = system_facts(root);
  EXPECT_EQ(facts.distribution, "Debian GNU/Linux 12 (bookworm)");
  EXPECT_EQ(facts.processor, "A fast one");
  EXPECT_EQ(facts.cores, 7);
  EXPECT_EQ(facts.quota, 1.5);
  EXPECT_EQ(facts.usable_cores(), 1);
  EXPECT_EQ(facts.machine_memory, 1 << 20);
  EXPECT_EQ(facts.memory.total, 512 << 10);
  EXPECT_TRUE(facts.has_infiniband);
  EXPECT_FALSE(facts.shm);
}

TEST_F(System, WithoutFilesIsAsTheKernelsCallsSay) {
  const SystemFacts facts = system_facts(root);
  EXPECT_EQ(facts.distribution, "");
  EXPECT_EQ(facts.cores, ::sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_FALSE(facts.quota);
  EXPECT_FALSE(facts.has_infiniband);
  EXPECT_FALSE(facts.kernel.empty());
}

TEST_F(System, DistributionsAreReadWithAnyQuotes) {
  put("/etc/os-release", "PRETTY_NAME='Alpine 3'\n");
  EXPECT_EQ(distribution_name(root), "Alpine 3");
  put("/etc/os-release", "PRETTY_NAME=Arch\n");
  EXPECT_EQ(distribution_name(root), "Arch");
}

TEST(SystemHere, AgreesWithTheKernel) {
  const SystemFacts facts = system_facts();
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(facts.open_files.soft, static_cast<int64_t>(files.rlim_cur));
  std::string name(256, '\0');
  ASSERT_EQ(::gethostname(name.data(), name.size()), 0);
  EXPECT_EQ(facts.hostname, name.c_str());
  EXPECT_GE(facts.cores, facts.allowed_cores);
  EXPECT_GE(facts.machine_memory, facts.memory.total);
}

TEST(SystemHere, SeesAChangedLimit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit lower = before;
  lower.rlim_cur = 100;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  EXPECT_EQ(system_facts().open_files.soft, 100);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace drivetrain::hardware
