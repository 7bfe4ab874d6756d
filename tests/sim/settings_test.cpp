// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <drivetrain/config.h>
#include <gtest/gtest.h>

#include "devices.h"
#include "expect_error.h"
#include "scoped_env.h"

namespace drivetrain::sim {
namespace {

TEST(SimSettings, ComeFromTheEnvironment) {
  const ScopedEnv devices("DRIVETRAIN_SIM_DEVICES", "3"), memory("DRIVETRAIN_SIM_MEMORY", "1.5GiB"),
      bandwidth("DRIVETRAIN_SIM_BANDWIDTH", "2GB"), protect("DRIVETRAIN_SIM_PROTECT", "0");
  const auto settings = Settings::from_environment();
  EXPECT_EQ(settings.devices, 3);
  EXPECT_EQ(settings.memory_bytes, int64_t{3} << 29);
  EXPECT_EQ(settings.bandwidth, 2000000000);
  EXPECT_FALSE(settings.protect);
  EXPECT_NO_THROW(Config::from_environment());
}

TEST(SimSettings, AreRefusedWhereTheyAreWrong) {
  const auto refused = [](const char* name, const char* value, const char* text) {
    const ScopedEnv variable(name, value);
    EXPECT_ERROR(Settings::from_environment(), ConfigError, text);
  };
  refused("DRIVETRAIN_SIM_DEVICES", "65", "is \"65\"; allowed: a whole number from 1 to 64");
  refused("DRIVETRAIN_SIM_DEVICES", "two", "DRIVETRAIN_SIM_DEVICES is \"two\"");
  refused("DRIVETRAIN_SIM_MEMORY", "64", "DRIVETRAIN_SIM_MEMORY is \"64\"; allowed: a number with");
  refused("DRIVETRAIN_SIM_MEMORY", "1KiB", "1.0 KiB; allowed: 1.0 MiB to 256.0 GiB");
  refused("DRIVETRAIN_SIM_BANDWIDTH", "fast", "DRIVETRAIN_SIM_BANDWIDTH is \"fast\"");
  refused("DRIVETRAIN_SIM_PROTECT", "maybe", "DRIVETRAIN_SIM_PROTECT is \"maybe\"");
  EXPECT_ERROR(load({.devices = 0}), ConfigError, "simulated devices: 0; allowed: 1 to 64");
  EXPECT_ERROR(load({.bandwidth = -1}), ConfigError, "bandwidth of a simulated device: -1");
}

TEST(SimSettings, StandOnceTheyAreLoaded) {
  EXPECT_TRUE(is_loaded());
  EXPECT_NO_THROW(load(kSettings));
  EXPECT_ERROR(load({.devices = 5}), ConfigError,
               "differ from those loaded (3 devices of 67108864 bytes)");
}

TEST(SimSettings, TheRegistryHasARow) {
  EXPECT_EQ(accelerator()->repr(), "sim (communication gloo, 3 devices)");
  const auto can = accelerator()->capabilities();
  EXPECT_TRUE(can.properties && can.utilization && can.memory_snapshot && can.memory_fraction);
  EXPECT_FALSE(can.synchronous || can.blocking_events || can.interprocess_events);
  const auto properties = accelerator()->get_device_properties(1);
  EXPECT_EQ(properties.name, "simulated device 1");
  EXPECT_EQ(properties.total_memory, kSettings.memory_bytes);
  const auto names = registered_accelerators();
  EXPECT_EQ(names[names.size() - 2], "sim");
  EXPECT_EQ(names.back(), "cpu");
}

}  // namespace
}  // namespace drivetrain::sim
