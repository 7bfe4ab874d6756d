// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <thread>

#include "expect_error.h"
#include "scoped_env.h"

namespace drivetrain {
namespace {

// A backend that implements only what it must.
class Bare : public BaseAccelerator {
 public:
  explicit Bare(std::string name, int devices = 1, std::string reason = "")
      : BaseAccelerator(facts_of(std::move(name))), devices_(devices), reason_(std::move(reason)) {}

  static AcceleratorFacts facts_of(std::string name) {
    AcceleratorFacts facts;
    facts.name = std::move(name);
    facts.communication_backend = "gloo";
    facts.priority = 2000;  // after cpu, so that detection is as without it
    return facts;
  }
  std::string why_unavailable() const override { return reason_; }
  int device_count() const override { return devices_; }
  using BaseAccelerator::unsupported;

 private:
  int devices_;
  std::string reason_;
};

class Registry : public ::testing::Test {
 protected:
  Registry() { clear_accelerator(); }
  ~Registry() override { clear_accelerator(); }
  ScopedEnv no_choice{"DRIVETRAIN_ACCELERATOR", nullptr};
};

std::string reason_of(const std::string& name) {
  for (const ProbeResult& result : probe_report())
    if (result.name == name) return result.reason;
  return "(not in the report)";
}

std::vector<std::string> chosen() {
  std::vector<std::string> names;
  for (const ProbeResult& result : probe_report())
    if (result.chosen) names.push_back(result.name);
  return names;
}

TEST_F(Registry, AsksInTheDocumentedOrder) {
  const auto names = registered_accelerators();
  const std::vector<std::string> first = {"cuda", "npu", "xpu", "mps", "mlu", "musa"};
  ASSERT_GE(names.size(), 10u);
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 6), first);
  EXPECT_THAT(names, ::testing::Contains("cpu"));
}

TEST_F(Registry, RowsHoldTheFactsOfEachBackend) {
  EXPECT_EQ(make_accelerator("cuda")->communication_backend(), "nccl");
  EXPECT_EQ(make_accelerator("npu")->communication_backend(), "hccl");
  EXPECT_EQ(make_accelerator("npu")->device_type(), c10::DeviceType::PrivateUse1);
  EXPECT_EQ(make_accelerator("npu")->facts().visible_devices, "ASCEND_RT_VISIBLE_DEVICES");
  EXPECT_EQ(make_accelerator("xpu")->communication_backend(), "xccl");
  EXPECT_EQ(make_accelerator("cpu")->communication_backend(), "gloo");
  EXPECT_EQ(NpuAccelerator().name(), "npu");
  EXPECT_EQ(XpuAccelerator().name(), "xpu");
  EXPECT_EQ(CudaAccelerator().name(), "cuda");
  EXPECT_EQ(MpsAccelerator().name(), "mps");
}

TEST_F(Registry, OnAnOrdinaryHostDetectsTheCpu) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "this host has a GPU";
  EXPECT_EQ(get_accelerator()->name(), "cpu");
  EXPECT_EQ(get_accelerator(), get_accelerator());
  EXPECT_EQ(chosen(), std::vector<std::string>{"cpu"});
  EXPECT_EQ(reason_of("cpu"), "1 device, first in order");
}

TEST_F(Registry, RecordsAReasonForEveryCandidate) {
  const auto report = probe_report();
  const auto names = registered_accelerators();
  ASSERT_EQ(report.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(report[i].name, names[i]);
    EXPECT_FALSE(report[i].reason.empty()) << names[i];
  }
  if (!torch::cuda::is_available()) {
    EXPECT_THAT(reason_of("cuda"), ::testing::HasSubstr("/proc/driver/nvidia/version"));
  }
  EXPECT_THAT(reason_of("npu"), ::testing::HasSubstr("no plugin is loaded"));
}

TEST_F(Registry, AnUnknownNameSuggestsTheNearest) {
  EXPECT_ERROR(set_accelerator("cudaa"), HardwareError, "did you mean \"cuda\"?");
  EXPECT_ERROR(set_accelerator("quantum"), HardwareError, "allowed: cuda, npu, ");
  EXPECT_ERROR(make_accelerator("CPU"), HardwareError, "did you mean \"cpu\"?");
  EXPECT_ERROR(ScopedAccelerator("tpu"), HardwareError, "\"tpu\" is not registered");
}

TEST_F(Registry, AnAbsentBackendIsRefusedWithWhatWasFound) {
  set_accelerator("cpu");
  EXPECT_ERROR(set_accelerator("mlu"), HardwareError,
               "accelerator \"mlu\" is not available: no plugin is loaded");
  EXPECT_ERROR(set_accelerator("mlu"), HardwareError, "of the registered cuda, npu, ");
  EXPECT_EQ(get_accelerator()->name(), "cpu");
  EXPECT_ERROR(set_accelerator(std::shared_ptr<BaseAccelerator>()), HardwareError,
               "a null pointer");
}

TEST_F(Registry, AnAbsentBackendsCallsSayWhy) {
  if (make_accelerator("npu")->is_available()) GTEST_SKIP();
  const auto npu = make_accelerator("npu");
  EXPECT_EQ(npu->device_count(), 0);
  EXPECT_ERROR(npu->synchronize(), HardwareError, "npu: synchronize found no device: no plugin");
  EXPECT_ERROR(npu->get_current_device(), HardwareError, "npu: get_current_device found no device");
  EXPECT_NO_THROW(npu->capabilities());
}

TEST_F(Registry, AnInstanceCanBeSet) {
  const auto bare = std::make_shared<Bare>("bare");
  set_accelerator(bare);
  EXPECT_EQ(get_accelerator(), bare);
  EXPECT_ERROR(set_accelerator(std::make_shared<Bare>("broken", 0, "it is broken")), HardwareError,
               "\"broken\" is not available: it is broken");
  EXPECT_EQ(get_accelerator(), bare);
}

TEST_F(Registry, DetectionKeepsAnExplicitChoice) {
  const auto bare = std::make_shared<Bare>("bare");
  set_accelerator(bare);
  EXPECT_EQ(auto_set_accelerator(), bare);
  clear_accelerator();
  EXPECT_NE(auto_set_accelerator(), bare);
}

TEST_F(Registry, DetectingAgainLooksAgain) {
  const auto first = get_accelerator();
  EXPECT_NE(auto_set_accelerator(), first);
}

TEST_F(Registry, TheEnvironmentDecides) {
  const ScopedEnv choice("DRIVETRAIN_ACCELERATOR", "cpu");
  EXPECT_EQ(get_accelerator()->name(), "cpu");
  EXPECT_EQ(reason_of("cpu"), "1 device, named by DRIVETRAIN_ACCELERATOR");
}

TEST_F(Registry, AWrongNameInTheEnvironmentIsAConfigError) {
  const ScopedEnv choice("DRIVETRAIN_ACCELERATOR", "cpuu");
  EXPECT_ERROR(get_accelerator(), ConfigError,
               "DRIVETRAIN_ACCELERATOR: \"cpuu\" is not registered");
  EXPECT_ERROR(auto_set_accelerator(), ConfigError, "did you mean \"cpu\"?");
  set_accelerator("cpu");
  EXPECT_EQ(get_accelerator()->name(), "cpu");
}

TEST_F(Registry, AnAbsentBackendInTheEnvironmentIsRefused) {
  const ScopedEnv choice("DRIVETRAIN_ACCELERATOR", "mlu");
  EXPECT_ERROR(get_accelerator(), HardwareError,
               "\"mlu\", named by DRIVETRAIN_ACCELERATOR, is not available");
}

TEST_F(Registry, ScopesNest) {
  const auto outer = std::make_shared<Bare>("outer"), inner = std::make_shared<Bare>("inner");
  const auto before = get_accelerator();
  {
    const ScopedAccelerator first(outer);
    EXPECT_EQ(get_accelerator(), outer);
    {
      const ScopedAccelerator second(inner);
      EXPECT_EQ(get_accelerator(), inner);
    }
    set_accelerator("cpu");
    EXPECT_EQ(get_accelerator(), outer);
  }
  EXPECT_EQ(get_accelerator()->name(), "cpu");
  EXPECT_NE(before, nullptr);
}

TEST_F(Registry, ScopesMayEndInAnyOrder) {
  const auto a = std::make_shared<Bare>("a"), b = std::make_shared<Bare>("b");
  auto first = std::make_unique<ScopedAccelerator>(a);
  auto second = std::make_unique<ScopedAccelerator>(b);
  first.reset();
  EXPECT_EQ(get_accelerator(), b);
  second.reset();
  EXPECT_NE(get_accelerator(), b);
}

TEST_F(Registry, AScopeEndsWithAnException) {
  try {
    const ScopedAccelerator scope(std::make_shared<Bare>("scoped"));
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
    EXPECT_NE(get_accelerator()->name(), "scoped");
  }
}

TEST_F(Registry, IsOpen) {
  register_accelerator(Bare::facts_of("bare-registered"), [](const AcceleratorFacts& facts) {
    return std::make_shared<Bare>(facts.name);
  });
  EXPECT_EQ(registered_accelerators().back(), "bare-registered");
  set_accelerator("bare-registered");
  EXPECT_EQ(get_accelerator()->name(), "bare-registered");
  EXPECT_ERROR(register_accelerator(Bare::facts_of("bare-registered")), HardwareError,
               "registered already");
  // Facts alone make a device-generic backend, here of a plugin that is not loaded.
  auto facts = Bare::facts_of("plugin-registered");
  facts.plugin = "plugin-registered";
  register_accelerator(facts);
  EXPECT_FALSE(make_accelerator("plugin-registered")->is_available());
  EXPECT_ERROR(set_accelerator("plugin-registred"), HardwareError, "did you mean");
}

TEST_F(Registry, ManyThreadsDetectOne) {
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<BaseAccelerator>> seen(8);
  for (size_t i = 0; i < seen.size(); ++i)
    threads.emplace_back([&seen, i] { seen[i] = get_accelerator(); });
  for (auto& thread : threads) thread.join();
  for (const auto& accelerator : seen) EXPECT_EQ(accelerator, seen[0]);
}

TEST_F(Registry, ThreadsSetScopeAndReadTogether) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&wrong] {
      for (int step = 0; step < 100; ++step) {
        set_accelerator("cpu");
        const ScopedAccelerator scope(std::make_shared<Bare>("scoped"));
        if (get_accelerator()->name() != "scoped") ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(get_accelerator()->name(), "cpu");
}

// Whatever a backend has not implemented is one typed error with its name and the call.
TEST_F(Registry, ABareBackendRefusesByName) {
  Bare bare("bare");
  EXPECT_ERROR(bare.set_device(0), HardwareError, "bare: set_device is not supported");
  EXPECT_ERROR(bare.get_device_name(), HardwareError, "bare: get_device_properties is not");
  EXPECT_ERROR(bare.utilization(), HardwareError, "bare: utilization is not supported");
  EXPECT_ERROR(bare.synchronize(), HardwareError, "bare: synchronize is not supported");
  EXPECT_ERROR(bare.get_rng_state(), HardwareError, "bare: get_rng_state is not supported");
  EXPECT_ERROR(bare.empty_cache(), HardwareError, "bare: empty_cache is not supported");
  EXPECT_ERROR(bare.memory_allocated(), HardwareError, "bare: memory_stats is not supported");
  EXPECT_ERROR(bare.reset_peak_memory_stats(), HardwareError, "reset_peak_memory_stats is not");
  EXPECT_ERROR(bare.memory_snapshot(), HardwareError, "bare: memory_snapshot is not supported");
  EXPECT_ERROR(bare.set_per_process_memory_fraction(0.5), HardwareError, "PYTORCH_ALLOC_CONF");
  EXPECT_ERROR(bare.total_memory(), HardwareError, "bare: total_memory is not supported");
  EXPECT_ERROR(bare.Stream(), HardwareError, "bare: Stream is not supported");
  EXPECT_ERROR(bare.current_stream(), HardwareError, "bare: current_stream is not supported");
  EXPECT_ERROR(bare.default_stream(), HardwareError, "bare: default_stream is not supported");
  EXPECT_ERROR(bare.Event(), HardwareError, "bare: Event is not supported");
  EXPECT_ERROR(bare.set_stream(c10::Stream(c10::Stream::DEFAULT, {c10::kPrivateUse1, 0})),
               HardwareError, "bare: set_stream is not supported");
}

}  // namespace
}  // namespace drivetrain
