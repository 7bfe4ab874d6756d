// SPDX-License-Identifier: Apache-2.0
// Values of the CPU backend: what the contract leaves open.
#include <torch/torch.h>

#include <ATen/Version.h>
#include <c10/core/CPUAllocator.h>
#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <thread>

#include "expect_error.h"
#include "scoped_env.h"

namespace drivetrain {
namespace {

TEST(Cpu, IsOneSynchronousDeviceWithoutAnIndex) {
  CpuAccelerator cpu;
  EXPECT_EQ(cpu.repr(), "cpu (communication gloo, 1 device)");
  EXPECT_EQ(cpu.device_count(), 1);
  EXPECT_EQ(cpu.current_device(), 0);
  EXPECT_EQ(cpu.get_current_device(), c10::Device(c10::kCPU));
  EXPECT_FALSE(cpu.get_current_device().has_index());
  EXPECT_TRUE(cpu.is_synchronous());
  EXPECT_FALSE(cpu.support_set_device());
  EXPECT_EQ(cpu.get_version(), "");
}

TEST(Cpu, ServesEveryLocalRank) {
  const ScopedEnv rank("LOCAL_RANK", "5");
  CpuAccelerator cpu;
  cpu.set_device();
  EXPECT_EQ(cpu.current_device(), 0);
  EXPECT_ERROR(cpu.set_device(1), HardwareError, "cpu: set_device was given device 1");
}

TEST(Cpu, SaysWhatItRunsOn) {
  CpuAccelerator cpu;
  const DeviceProperties properties = cpu.get_device_properties();
  EXPECT_EQ(properties.multi_processor_count, num_cores());
  EXPECT_GE(num_cores(), 1);
  EXPECT_LE(num_cores(), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(properties.capability.level, at::get_cpu_capability());
  EXPECT_FALSE(properties.features.empty());
}

TEST(Cpu, UtilizationSeesABusyCore) {
  CpuAccelerator cpu;
  cpu.utilization();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  volatile double x = 1.0;
  while (std::chrono::steady_clock::now() < end) x = x * 1.0000001;
  // One core of all was busy; other work on the machine can only add to that.
  EXPECT_GE(cpu.utilization(), 50.0 / num_cores());
}

// tests/golden/random_numbers.py
TEST(Cpu, Seed42GivesPyTorchsNumbers) {
  CpuAccelerator cpu;
  cpu.manual_seed(42);
  const std::vector<float> expected = {0.33669036626815796F, 0.12880940735340118F,
                                       0.23446236550807953F, 0.23033303022384644F,
                                       -1.1228563785552979F};
  const auto randn = torch::randn({5});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(randn[i].item<float>(), expected[i]);
  cpu.manual_seed_all(42);
  EXPECT_EQ(torch::rand({3})[0].item<float>(), 0.8822692632675171F);
  EXPECT_EQ(cpu.get_rng_state().numel(), 5056);
}

TEST(Cpu, MemoryOfOneTensorIsCountedExactly) {
  CpuAccelerator cpu;
  const int64_t before = cpu.memory_allocated();
  auto tensor = torch::empty({1000}, torch::kFloat32);
  auto view = tensor.slice(0, 10, 20);
  EXPECT_EQ(cpu.memory_allocated() - before, 4000);
  tensor.reset();
  EXPECT_EQ(cpu.memory_allocated() - before, 4000);
  view.reset();
  EXPECT_EQ(cpu.memory_allocated(), before);
  EXPECT_EQ(torch::empty({0}).numel(), 0);
  EXPECT_EQ(cpu.memory_allocated(), before);
}

TEST(Cpu, MemoryFromBeforeTheCountIsFreedUncounted) {
  // Made through the allocator beneath, as everything is before the first memory call.
  CpuAccelerator cpu;
  const int64_t before = cpu.memory_allocated();
  {
    const auto data = c10::GetDefaultCPUAllocator()->allocate(1 << 20);
  }
  void* raw = c10::GetDefaultCPUAllocator()->raw_allocate(1 << 20);
  c10::GetCPUAllocator()->raw_deallocate(raw);
  EXPECT_EQ(cpu.memory_allocated(), before);
}

TEST(Cpu, ResizedAndSharedStoragesStayBalanced) {
  CpuAccelerator cpu;
  const int64_t before = cpu.memory_allocated();
  {
    auto tensor = torch::empty({10}, torch::kUInt8);
    tensor.resize_({5000});
    EXPECT_EQ(cpu.memory_allocated() - before, 5000);
    auto lazy = at::_lazy_clone(tensor);  // copy-on-write needs simple data pointers
    EXPECT_EQ(cpu.memory_allocated() - before, 5000);
    lazy.fill_(1);
    EXPECT_EQ(cpu.memory_allocated() - before, 10000);
  }
  EXPECT_EQ(cpu.memory_allocated(), before);
}

TEST(Cpu, CountsAcrossThreads) {
  CpuAccelerator cpu;
  const MemoryStats before = cpu.memory_stats();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([] {
      for (int step = 0; step < 500; ++step) torch::empty({step + 1}, torch::kUInt8);
    });
  for (auto& thread : threads) thread.join();
  const MemoryStats after = cpu.memory_stats();
  EXPECT_EQ(after.allocated_bytes.current, before.allocated_bytes.current);
  EXPECT_EQ(after.allocated_bytes.allocated - before.allocated_bytes.allocated, 8 * 500 * 501 / 2);
  EXPECT_EQ(after.allocations.allocated - before.allocations.allocated, 4000);
  EXPECT_EQ(after.allocations.freed - before.allocations.freed, 4000);
}

TEST(Cpu, AboveItsFractionAllocationThrowsOutOfMemory) {
  CpuAccelerator cpu;
  const int64_t ooms = cpu.memory_stats().num_ooms;
  const double used = static_cast<double>(cpu.memory_allocated() + (8 << 20));
  cpu.set_per_process_memory_fraction(used / static_cast<double>(cpu.total_memory()));
  const auto fits = torch::empty({4 << 20}, torch::kUInt8);
  EXPECT_ERROR(torch::empty({8 << 20}, torch::kUInt8), c10::OutOfMemoryError,
               "cpu out of memory: tried to allocate 8.0 MiB");
  cpu.set_per_process_memory_fraction(1.0);
  EXPECT_EQ(cpu.memory_stats().num_ooms, ooms + 1);
  EXPECT_NO_THROW(torch::empty({8 << 20}, torch::kUInt8));
}

TEST(Cpu, ReservedMemoryIsTheResidentSetInBytes) {
  CpuAccelerator cpu;
  EXPECT_GT(cpu.memory_reserved(), 10 << 20);  // LibTorch alone is larger than this
  cpu.reset_peak_memory_stats();
  const int64_t before = cpu.max_memory_reserved();
  torch::empty({64 << 20}, torch::kUInt8).fill_(1);
  const int64_t grown = cpu.max_memory_reserved() - before;
  EXPECT_GE(grown, 60 << 20);
  EXPECT_LE(grown, 80 << 20);
  cpu.reset_max_memory_cached();
#ifndef __SANITIZE_ADDRESS__  // it keeps what is freed
  EXPECT_LE(cpu.max_memory_reserved() - before, 16 << 20);
#endif
}

TEST(Cpu, EventsTimeTheCaller) {
  CpuAccelerator cpu;
  auto start = cpu.Event(true), end = cpu.Event(true);
  start.record();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  end.record();
  EXPECT_GE(start.elapsed_time(end), 20.0);
  EXPECT_LT(start.elapsed_time(end), 2000.0);
  EXPECT_LT(end.elapsed_time(start), 0.0);
}

TEST(Cpu, AStreamBelongsToItsThread) {
  CpuAccelerator cpu;
  const auto guard = cpu.stream(cpu.Stream());
  c10::Stream seen = cpu.current_stream();
  std::thread([&] { seen = cpu.current_stream(); }).join();
  EXPECT_EQ(seen, cpu.default_stream());
}

}  // namespace
}  // namespace drivetrain
