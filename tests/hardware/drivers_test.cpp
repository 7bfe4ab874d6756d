// SPDX-License-Identifier: Apache-2.0
#include "hardware/facts/drivers.h"

#include <drivetrain/error.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <set>

#include <unistd.h>

#include "expect_error.h"
#include "made_machine.h"
#include "scoped_env.h"

namespace drivetrain::hardware {
namespace {

using ::testing::ElementsAre;

constexpr const char* kVersionFile =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n";
constexpr const char* kOpenVersionFile =
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n";

class Drivers : public MadeMachine {
 protected:
  Drivers() {
    for (const DriverRow& row : driver_rows())
      unset_.emplace_back(std::string(row.visible_devices), nullptr);
  }

  void put_gpu(int number) { put("/dev/nvidia" + std::to_string(number)); }
  void put_render_node(int number, const std::string& vendor, const std::string& pci_class) {
    const std::string name = "renderD" + std::to_string(number);
    put("/dev/dri/" + name);
    put("/sys/class/drm/" + name + "/device/vendor", vendor + "\n");
    put("/sys/class/drm/" + name + "/device/class", pci_class + "\n");
  }
  DriverFound only() {
    const auto found = find_drivers(root);
    EXPECT_EQ(found.size(), 1U);
    return found.at(0);
  }

 private:
  std::deque<ScopedEnv> unset_;
};

TEST_F(Drivers, OfAnEmptyMachineAreNone) {
  EXPECT_TRUE(find_drivers(root).empty());
  EXPECT_EQ(evidence_of_device("cuda", root), "");
  EXPECT_TRUE(seen_devices(root).devices.empty());
  EXPECT_EQ(seen_devices(root).variable, "");
}

TEST_F(Drivers, AreFoundWithVersionAndDevices) {
  put("/proc/driver/nvidia/version", kVersionFile);
  for (int number : {10, 0, 2}) put_gpu(number);
  put("/dev/nvidiactl");
  put("/dev/nvidia-uvm");
  const DriverFound found = only();
  EXPECT_EQ(found.row->vendor, "NVIDIA");
  EXPECT_TRUE(found.is_loaded);
  EXPECT_EQ(found.version, "535.104.05");
  EXPECT_THAT(found.devices, ElementsAre("/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia10"));
  EXPECT_EQ(found.computing, 3);
  EXPECT_EQ(evidence_of_device("cuda", root),
            "the NVIDIA driver 535.104.05, /dev/nvidia0 and 2 more");
  EXPECT_EQ(evidence_of_device("npu", root), "");
}

TEST_F(Drivers, TellTheirVersionInEveryWriting) {
  put("/proc/driver/nvidia/version", kOpenVersionFile);
  EXPECT_EQ(only().version, "580.65.06");
  put("/dev/davinci_manager");
  put("/usr/local/Ascend/driver/version.info", "Version=23.0.rc2\nascendhal_version=7\n");
  EXPECT_EQ(find_drivers(root).at(1).version, "23.0.rc2");
}

// A container is given one GPU of many: it keeps its number.
TEST_F(Drivers, DevicesMayHaveAnyNumber) {
  put_gpu(3);
  EXPECT_EQ(only().devices.size(), 1U);
  EXPECT_FALSE(only().is_loaded);
  EXPECT_THAT(seen_devices(root).devices, ElementsAre("0"));
}

TEST_F(Drivers, OfADesktopsGraphicsChipDoNotCount) {
  put_render_node(128, "0x8086", "0x030000");
  const DriverFound found = only();
  EXPECT_EQ(found.row->vendor, "Intel");
  EXPECT_EQ(found.devices.size(), 1U);
  EXPECT_FALSE(found.is_for_computing);
  EXPECT_EQ(evidence_of_device("xpu", root), "");
  EXPECT_TRUE(seen_devices(root).devices.empty());
}

TEST_F(Drivers, OfAnAcceleratorOfThatVendorDo) {
  put_render_node(128, "0x8086", "0x030000");
  put_render_node(129, "0x8086", "0x038000");
  put_render_node(130, "0x10de", "0x030000");
  const DriverFound found = only();
  EXPECT_EQ(found.devices.size(), 2U);
  EXPECT_EQ(found.computing, 1);
  EXPECT_THAT(seen_devices(root).devices, ElementsAre("0"));
  EXPECT_EQ(seen_devices(root).variable, "ZE_AFFINITY_MASK");
}

TEST_F(Drivers, OfOneBackendCanHaveTwoVendors) {
  put("/dev/kfd");
  put_render_node(128, "0x1002", "0x120000");
  const DriverFound found = only();
  EXPECT_EQ(found.row->vendor, "AMD");
  EXPECT_EQ(found.row->backend, "cuda");
  EXPECT_EQ(evidence_of_device("cuda", root), "the AMD driver, /dev/dri/renderD128");
}

TEST_F(Drivers, SayWhatMayNotBeOpened) {
  put_gpu(0);
  put_gpu(1);
  std::filesystem::permissions(root + "/dev/nvidia1", std::filesystem::perms::none);
  if (::access((root + "/dev/nvidia1").c_str(), R_OK) == 0) GTEST_SKIP() << "root opens everything";
  EXPECT_THAT(only().refused, ElementsAre("/dev/nvidia1"));
}

TEST_F(Drivers, VisibleDevicesAreWhatTheVariableLists) {
  put_gpu(0);
  const ScopedEnv list("CUDA_VISIBLE_DEVICES", "GPU-8932f937,MIG-GPU-8932f937/1/0");
  const SeenDevices seen = seen_devices(root);
  EXPECT_EQ(seen.variable, "CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(seen.devices, ElementsAre("GPU-8932f937", "MIG-GPU-8932f937/1/0"));
}

TEST_F(Drivers, HiddenDevicesGiveWayToTheNextKind) {
  put_gpu(0);
  put("/dev/davinci_manager");
  put("/dev/davinci0");
  put("/dev/davinci1");
  EXPECT_EQ(seen_devices(root).variable, "CUDA_VISIBLE_DEVICES");
  const ScopedEnv hidden("CUDA_VISIBLE_DEVICES", "");
  const SeenDevices seen = seen_devices(root);
  EXPECT_EQ(seen.variable, "ASCEND_RT_VISIBLE_DEVICES");
  EXPECT_THAT(seen.devices, ElementsAre("0", "1"));
}

TEST_F(Drivers, AWrongListIsRefused) {
  const ScopedEnv wrong("CUDA_VISIBLE_DEVICES", "gpu0");
  EXPECT_ERROR(seen_devices(root), ConfigError, "CUDA_VISIBLE_DEVICES is \"gpu0\"");
}

TEST(DriverTable, KnowsTheOldestDriverOfARuntime) {
  const DriverRow& nvidia = driver_rows()[0];
  ASSERT_EQ(nvidia.vendor, "NVIDIA");
  EXPECT_EQ(driver_needed(nvidia, "470.82.01", 12), "525.60.13");
  EXPECT_EQ(driver_needed(nvidia, "525.60.12", 12), "525.60.13");
  EXPECT_EQ(driver_needed(nvidia, "525.60.13", 12), "");
  EXPECT_EQ(driver_needed(nvidia, "1000.0", 12), "");  // numbers, not letters
  EXPECT_EQ(driver_needed(nvidia, "535.104.05", 13), "580.65.06");
  EXPECT_EQ(driver_needed(nvidia, "535.104.05", 99), "");  // not known: not refused
  EXPECT_EQ(driver_needed(nvidia, "", 12), "");
}

TEST(DriverTable, NamesEachVariableAndVendorOnce) {
  std::set<std::string_view> vendors, variables;
  for (const DriverRow& row : driver_rows()) {
    EXPECT_TRUE(vendors.insert(row.vendor).second) << row.vendor;
    EXPECT_TRUE(variables.insert(row.visible_devices).second) << row.visible_devices;
    EXPECT_FALSE(row.backend.empty());
  }
  EXPECT_EQ(visible_devices_variable("npu"), "ASCEND_RT_VISIBLE_DEVICES");
  EXPECT_EQ(visible_devices_variable("cpu"), "");
  EXPECT_EQ(driver_path("mlu"), "/dev/cambricon_ctl");
  EXPECT_EQ(driver_path("cpu"), "");
}

}  // namespace
}  // namespace drivetrain::hardware
