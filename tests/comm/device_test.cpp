// SPDX-License-Identifier: Apache-2.0
// Collectives on tensors that are not on the CPU: through host memory, and by a vendor's library.
#include <drivetrain/comm.h>
#include <drivetrain/hardware.h>
#include <drivetrain_sim/sim.h>
#include <torch/torch.h>

#include "expect_error.h"
#include "ranks.h"
#include "thread_backend.h"

namespace drivetrain {
namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 7};
constexpr int kDevices = 2;

[[maybe_unused]] const bool loaded = (sim::load({.devices = kDevices}), true);

at::Device device_of(const World& world) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(world.rank() % kDevices)};
}

at::Tensor values(const World& world, at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Tensor out = torch::arange(c10::multiply_integers(sizes)).reshape(sizes) % 5 + world.rank();
  return out.to(dtype);
}

void expect_same(const at::Tensor& on_device, const at::Tensor& on_cpu, const World& world) {
  EXPECT_EQ(on_device.device(), device_of(world));
  EXPECT_EQ(on_device.dtype(), on_cpu.dtype());
  EXPECT_TRUE(torch::equal(on_device.cpu(), on_cpu)) << on_device.cpu() << on_cpu;
}

// Every collective on the device gives what it gives on the CPU.
void expect_as_on_cpu(const World& world, at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor cpu = values(world, sizes, dtype);
  const at::Tensor there = cpu.to(device_of(world));
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    if (dtype == at::kBool && op == ReduceOp::sum) continue;
    expect_same(all_reduce(world, there, op), all_reduce(world, cpu, op), world);
    expect_same(reduce(world, there, 0, op), reduce(world, cpu, 0, op), world);
  }
  expect_same(all_gather(world, there), all_gather(world, cpu), world);
  expect_same(gather(world, there), gather(world, cpu), world);
  expect_same(broadcast(world, there, world.world_size() - 1),
              broadcast(world, cpu, world.world_size() - 1), world);
  expect_same(pad_across_processes(world, there), pad_across_processes(world, cpu), world);
  barrier(world);
}

void expect_all_as_on_cpu(const World& world) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kDouble, at::kShort})
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{}, {0}, {1}, {3, 5}, {2, 0, 3}})
      expect_as_on_cpu(world, sizes, dtype);
  const int size = world.world_size();
  const at::Tensor rows = values(world, {2 * size, 3}, at::kFloat);
  expect_same(reduce_scatter(world, rows.to(device_of(world))), reduce_scatter(world, rows), world);
  const at::Tensor ragged = values(world, {world.rank(), 2}, at::kFloat);
  expect_same(gather(world, ragged.to(device_of(world))), gather(world, ragged), world);
}

void expect_asynchronous_as_on_cpu(const World& world) {
  const at::Device device = device_of(world);
  std::vector<at::Tensor> sums;
  std::vector<Pending> pending;
  for (int i = 0; i < 5; ++i) {
    sums.push_back(values(world, {3 + i}, at::kFloat).to(device));
    pending.push_back(world.all_reduce_async(sums.back(), ReduceOp::mean));
  }
  at::Tensor half = values(world, {4}, at::kBFloat16).to(device);
  pending.push_back(world.all_reduce_async(half, ReduceOp::max));
  at::Tensor copied = values(world, {6}, at::kLong).to(device);
  pending.push_back(world.broadcast_async(copied, 0));
  at::Tensor all = torch::zeros({world.world_size(), 2}, device);
  pending.push_back(world.all_gather_async(all, values(world, {2}, at::kFloat).to(device)));
  // On the CPU, behind those that are still on their way.
  const at::Tensor after = all_reduce(world, torch::ones({1}));
  for (Pending& one : pending) one.wait();
  EXPECT_EQ(after.item<int>(), world.world_size());
  const double mean_rank = (world.world_size() - 1) / 2.0;
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(torch::allclose(sums[i].cpu(), torch::arange(3 + i) % 5 + mean_rank));
  EXPECT_TRUE(
      torch::equal(half.cpu(), torch::arange(4).to(at::kBFloat16) + world.world_size() - 1));
  EXPECT_TRUE(torch::equal(copied.cpu(), torch::arange(6) % 5));
  EXPECT_TRUE(torch::equal(all.cpu().select(1, 1), torch::arange(1, world.world_size() + 1)));
}

TEST(Staged, CollectivesGiveWhatTheyGiveOnTheCpu) {
  for (const int size : kWorlds) run_ranks(size, expect_all_as_on_cpu);
}

TEST(Staged, AsynchronousOnesStartInTheirOrder) {
  for (const int size : kWorlds) run_ranks(size, expect_asynchronous_as_on_cpu);
}

// The same device, as an accelerator whose library is registered.
class Vendor : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    AcceleratorFacts facts = make_accelerator("sim")->facts();
    facts.name = "sim_with_threads";
    facts.communication_backend = "threads";
    register_accelerator(facts);
    register_comm_backend("threads", [](const c10::intrusive_ptr<c10d::Store>&, int rank, int size,
                                        std::chrono::milliseconds) {
      std::lock_guard lock(mutex_);
      if (fails_) throw std::runtime_error("no network card\nbacktrace");
      return c10::make_intrusive<ThreadBackend>(board_, rank, size, c10::DeviceType::PrivateUse1);
    });
  }

  static void run(int size, const std::function<void(World)>& body) {
    const ScopedAccelerator scope("sim_with_threads");
    board_ = std::make_shared<Board>(size);
    run_ranks(size, body);
  }

  static inline std::mutex mutex_;
  static inline std::shared_ptr<Board> board_;
  static inline bool fails_ = false;
};

TEST_F(Vendor, CarriesTheCollectivesOnItsDevice) {
  for (const int size : kWorlds) {
    ThreadBackend::num_calls = 0;
    run(size, expect_all_as_on_cpu);
    run(size, expect_asynchronous_as_on_cpu);
    EXPECT_GE(ThreadBackend::num_calls, size > 1 ? 100 * size : 0);
  }
}

TEST_F(Vendor, LeavesTensorsOnTheCpuToGloo) {
  ThreadBackend::num_calls = 0;
  run(2, [](World world) { all_reduce(world, torch::ones({3})); });
  EXPECT_EQ(ThreadBackend::num_calls, 0);
}

TEST_F(Vendor, ThatCannotBeMadeIsNamed) {
  fails_ = true;
  EXPECT_ERROR(run(2, [](World world) { all_reduce(world, torch::ones({3}, device_of(world))); }),
               CommError,
               "communication backend \"threads\" cannot be made: no network card; allowed");
  fails_ = false;
}

TEST_F(Vendor, IsRegisteredOnceUnderAFreeName) {
  const auto make = [](const auto&, int, int, auto) { return c10::intrusive_ptr<c10d::Backend>(); };
  EXPECT_ERROR(register_comm_backend("threads", make), ConfigError,
               "communication backend \"threads\" is registered already; allowed: each name once");
  EXPECT_ERROR(register_comm_backend("gloo", make), ConfigError,
               "communication backend \"gloo\" is built in and serves host memory");
  EXPECT_ERROR(register_comm_backend("none", {}), ConfigError, "\"none\" has no factory");
  auto names = registered_comm_backends();
  std::erase(names, "nccl");  // with a LibTorch for CUDA
  EXPECT_EQ(names, (std::vector<std::string>{"gloo", "threads"}));
}

TEST(AcceleratorOf, IsTheOneOfTheTensorsType) {
  EXPECT_EQ(accelerator_of(c10::DeviceType::CPU)->name(), "cpu");
  EXPECT_EQ(accelerator_of(c10::DeviceType::PrivateUse1)->device_type(),
            c10::DeviceType::PrivateUse1);
  EXPECT_ERROR(accelerator_of(c10::DeviceType::MPS), HardwareError,
               "tensors on mps belong to no registered accelerator that is available");
}

}  // namespace
}  // namespace drivetrain
