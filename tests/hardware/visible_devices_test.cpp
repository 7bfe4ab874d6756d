// SPDX-License-Identifier: Apache-2.0
#include "hardware/facts/visible_devices.h"

#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace drivetrain::hardware {
namespace {

using Texts = std::vector<std::string>;

constexpr const char* kUuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
constexpr const char* kMig = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd";
constexpr const char* kOldMig = "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0";

Texts texts(const std::string& value) {
  Texts all;
  for (const VisibleDevice& device : parse_visible_devices("CUDA_VISIBLE_DEVICES", value))
    all.push_back(device.text);
  return all;
}

DeviceForm form(const std::string& value) {
  const auto devices = parse_visible_devices("CUDA_VISIBLE_DEVICES", value);
  EXPECT_EQ(devices.size(), 1U) << value;
  return devices.at(0).form;
}

TEST(VisibleDevices, KeepTheirOrderAndTheirText) {
  EXPECT_EQ(texts("3"), Texts{"3"});
  EXPECT_EQ(texts("2,0,7"), (Texts{"2", "0", "7"}));
  EXPECT_EQ(texts(" 2 , 0 "), (Texts{"2", "0"}));
  EXPECT_EQ(texts(std::string(kUuid) + "," + kMig), (Texts{kUuid, kMig}));
}

TEST(VisibleDevices, HaveFourForms) {
  EXPECT_EQ(form("15"), DeviceForm::index);
  EXPECT_EQ(form("0.1"), DeviceForm::tile);
  EXPECT_EQ(form(kUuid), DeviceForm::uuid);
  EXPECT_EQ(form("GPU-8932f937"), DeviceForm::uuid);  // enough of its start
  EXPECT_EQ(form("GPU-4b2c1a9f3e5d6c7b"), DeviceForm::uuid);
  EXPECT_EQ(form(kMig), DeviceForm::mig);
  EXPECT_EQ(form(kOldMig), DeviceForm::mig);
}

TEST(VisibleDevices, CanBeNone) {
  for (const char* value : {"", "  ", "-1", "-1,0,1", "NoDevFiles"})
    EXPECT_TRUE(texts(value).empty()) << '"' << value << '"';
}

TEST(VisibleDevices, EndAtANegativeIndex) { EXPECT_EQ(texts("0,2,-1,1"), (Texts{"0", "2"})); }

TEST(VisibleDevices, OfNoFormAreRefusedByName) {
  for (const char* value :
       {"gpu0", "0-2", "0;1", "0,,1", ",", "0,", "GPU-", "GPU-xyz", "MIG-", "MIG-GPU-8932f937/1",
        "MIG-GPU-8932f937/a/0", "1.", ".1", "1.2.3", "99999999999", "all", "0 1", "--1", "-"})
    EXPECT_ERROR(texts(value), ConfigError,
                 std::string("CUDA_VISIBLE_DEVICES is \"") + value + "\": \"");
  EXPECT_ERROR(texts("0,gpu1"), ConfigError, "\"gpu1\" names no device; allowed: numbers, GPU-");
  EXPECT_ERROR(parse_visible_devices("ZE_AFFINITY_MASK", "x"), ConfigError, "ZE_AFFINITY_MASK is");
}

TEST(VisibleDevices, NamedTwiceAreRefused) {
  EXPECT_ERROR(texts("0,1,0"), ConfigError, "is \"0,1,0\": it names 0 twice");
  EXPECT_ERROR(texts(std::string(kUuid) + "," + kUuid), ConfigError, "twice");
}

}  // namespace
}  // namespace drivetrain::hardware
