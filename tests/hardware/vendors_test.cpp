// SPDX-License-Identifier: Apache-2.0
// What the vendors' own libraries tell, by stand-ins of them (vendors/), of simulated devices that
// are called by the vendors' names.
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <drivetrain_sim/sim.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace drivetrain {
namespace {

template <class Accelerator>
class Vendor {
 public:
  explicit Vendor(std::string name) {
    sim::load({.devices = 2});
    AcceleratorFacts facts;
    facts.name = std::move(name);
    facts.plugin = "sim";
    accelerator_ = std::make_unique<Accelerator>(facts);
  }
  Accelerator* operator->() { return accelerator_.get(); }

 private:
  std::unique_ptr<Accelerator> accelerator_;
};

TEST(Vendor, OfCudaTellsNameCapabilityAndSize) {
  Vendor<CudaAccelerator> cuda("cuda");
  ASSERT_TRUE(cuda->capabilities().properties);
  const DeviceProperties properties = cuda->get_device_properties(1);
  EXPECT_EQ(properties.name, "Stand-in 1");
  EXPECT_EQ(properties.capability.major, 9);
  EXPECT_EQ(properties.capability.level, "9.0");
  EXPECT_EQ(properties.total_memory, int64_t{80} << 30);
  EXPECT_EQ(properties.multi_processor_count, 132);
  EXPECT_EQ(cuda->get_device_name(0), "Stand-in 0");
}

TEST(Vendor, OfCudaIsAskedForUtilizationByUuid) {
  Vendor<CudaAccelerator> cuda("cuda");
  ASSERT_TRUE(cuda->capabilities().utilization);
  EXPECT_EQ(cuda->utilization(1), 37.0);
  EXPECT_ERROR(cuda->utilization(0), HardwareError,
               "cuda: utilization failed: nvmlDeviceGetHandleByUUID returned 6");
}

TEST(Vendor, OfNpuTellsNameMemoryAndVersion) {
  Vendor<NpuAccelerator> npu("npu");
  ASSERT_TRUE(npu->capabilities().properties);
  EXPECT_EQ(npu->get_device_properties(1).name, "Ascend910B2");
  EXPECT_EQ(npu->get_device_properties(1).total_memory, npu->total_memory(1));
  EXPECT_EQ(npu->get_device_capability().level, "Ascend910B2");
  EXPECT_EQ(npu->get_version(), "CANN 8.0.RC3");
}

TEST(Vendor, OfNpuTellsTheBusiestUnits) {
  Vendor<NpuAccelerator> npu("npu");
  ASSERT_TRUE(npu->capabilities().utilization);
  EXPECT_EQ(npu->utilization(0), 64.0);
  EXPECT_ERROR(npu->utilization(1), HardwareError,
               "npu: utilization failed: aclrtGetDeviceUtilizationRate returned 507899");
}

}  // namespace
}  // namespace drivetrain
