// SPDX-License-Identifier: Apache-2.0
// Faults that other projects' hardware layers have had, each under its number there, on a machine
// that looks as theirs did: drivers' libraries are there (vendors/), and a plugin is loaded.
#include <torch/torch.h>

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <drivetrain_sim/sim.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <type_traits>

#include "hardware/facts/visible_devices.h"
#include "scoped_env.h"

// As vendors' "transfer to our device" layers do: LibTorch's own functions say that CUDA is there.
// Global, because LibTorch's registry of such hooks names classes without their namespace.
struct EveryQuestionIsYes : at::CUDAHooksInterface {
  explicit EveryQuestionIsYes(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  at::DeviceIndex deviceCount() const override { return 4; }
};
namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", EveryQuestionIsYes)
}  // namespace at

namespace drivetrain {
namespace {

bool is_loaded(const char* library) { return dlopen(library, RTLD_LAZY | RTLD_NOLOAD) != nullptr; }

// After every static initialiser of the libraries, before main.
const bool drivers_untouched =
    !is_loaded("libcuda.so.1") && !is_loaded("libnvidia-ml.so.1") && !is_loaded("libascendcl.so");

// ColossalAI 6359: a device was asked for while modules were still being imported.
TEST(Fault, ColossalAI6359LinkingTouchesNoDevice) { EXPECT_TRUE(drivers_untouched); }

// ColossalAI 6205: the library of another vendor was written into the application.
TEST(Fault, ColossalAI6205CommunicationIsDerivedFromTheDevice) {
  const std::map<std::string, std::string> table = {
      {"cuda", "nccl"}, {"npu", "hccl"},  {"xpu", "xccl"}, {"mps", "gloo"},  {"mlu", "cncl"},
      {"musa", "mccl"}, {"mtia", "hccl"}, {"hpu", "hccl"}, {"sdaa", "tccl"}, {"cpu", "gloo"}};
  for (const auto& [name, communication] : table)
    EXPECT_EQ(make_accelerator(name)->communication_backend(), communication) << name;
}

// accelerate 3020: a plugin that answers in CUDA's name was taken for CUDA.
TEST(Fault, Accelerate3020DetectionAsksForTheTypeNotTheFacade) {
  const ScopedEnv no_choice("DRIVETRAIN_ACCELERATOR", nullptr);
  sim::load({.devices = 2});
  ASSERT_TRUE(torch::cuda::is_available());
  clear_accelerator();
  EXPECT_EQ(get_accelerator()->name(), "sim");
  EXPECT_EQ(get_accelerator()->device_type(), c10::DeviceType::PrivateUse1);
  for (const ProbeResult& result : probe_report()) {
    if (result.name != "cuda") continue;
    EXPECT_THAT(result.reason, ::testing::HasSubstr("was built without it"));
  }
  clear_accelerator();
}

// DeepSpeed 5464, ColossalAI 3933: a bare number was a device of the wrong type.
static_assert(!std::is_convertible_v<int, c10::Device>);
static_assert(
    std::is_same_v<decltype(std::declval<BaseAccelerator>().get_current_device()), c10::Device>);
TEST(Fault, DeepSpeed5464TheCurrentDeviceHasItsType) {
  sim::load({.devices = 2});
  const auto accelerator = make_accelerator("sim");
  accelerator->set_device(1);
  const auto tensor = torch::ones({2}, torch::device(accelerator->get_current_device()));
  EXPECT_EQ(tensor.device(), c10::Device(c10::DeviceType::PrivateUse1, 1));
  accelerator->set_device(0);
}

// One that has a device only later.
struct Late : BaseAccelerator {
  using BaseAccelerator::BaseAccelerator;
  std::string why_unavailable() const override { return is_there ? "" : "not plugged in yet"; }
  int device_count() const override { return is_there ? 1 : 0; }
  static inline bool is_there = false;
};

// DeepSpeed 6845: a device that was not there yet was never asked for again.
TEST(Fault, DeepSpeed6845DetectionCanBeRepeatedAndSaysWhy) {
  const ScopedEnv no_choice("DRIVETRAIN_ACCELERATOR", nullptr);
  AcceleratorFacts facts;
  facts.name = "late";
  facts.priority = 1;
  register_accelerator(facts,
                       [](const AcceleratorFacts& row) { return std::make_shared<Late>(row); });
  clear_accelerator();
  EXPECT_NE(get_accelerator()->name(), "late");
  EXPECT_EQ(probe_report().front().reason, "not plugged in yet");
  Late::is_there = true;
  EXPECT_NE(get_accelerator()->name(), "late") << "stays until asked again";
  EXPECT_EQ(auto_set_accelerator()->name(), "late");
  Late::is_there = false;
  clear_accelerator();
}

// DeepSpeed 5278, 8510: int("MIG-...").
TEST(Fault, DeepSpeed5278VisibleDevicesMayBeUuidsAndMigs) {
  const auto devices =
      hardware::parse_visible_devices("CUDA_VISIBLE_DEVICES",
                                      "3, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, "
                                      "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2");
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[0].form, hardware::DeviceForm::index);
  EXPECT_EQ(devices[1].form, hardware::DeviceForm::uuid);
  EXPECT_EQ(devices[2].form, hardware::DeviceForm::mig);
}

}  // namespace
}  // namespace drivetrain
