// SPDX-License-Identifier: Apache-2.0
#include "sim/settings.h"

#include <drivetrain/error.h>

#include "core/environment.h"
#include "core/sizes.h"
#include "core/text.h"

namespace drivetrain::sim {

using core::str;

namespace {

int64_t environment_bytes(const char* name, int64_t otherwise) {
  const auto text = core::environment(name);
  return text ? core::parse_bytes(str("environment variable ", name), *text) : otherwise;
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  settings.devices = static_cast<int>(
      core::environment_int("DRIVETRAIN_SIM_DEVICES", 1, kMaxDevices).value_or(settings.devices));
  settings.memory_bytes = environment_bytes("DRIVETRAIN_SIM_MEMORY", settings.memory_bytes);
  settings.bandwidth = environment_bytes("DRIVETRAIN_SIM_BANDWIDTH", settings.bandwidth);
  settings.protect = core::environment_bool("DRIVETRAIN_SIM_PROTECT").value_or(settings.protect);
  check(settings);
  return settings;
}

void check(const Settings& settings) {
  const auto refuse = [](const auto&... text) { throw ConfigError(str(text...)); };
  if (settings.devices < 1 || settings.devices > kMaxDevices)
    refuse("simulated devices: ", settings.devices, "; allowed: 1 to ", kMaxDevices,
           "; correct DRIVETRAIN_SIM_DEVICES or Settings::devices");
  if (settings.memory_bytes < kMinMemory || settings.memory_bytes > kMaxMemory)
    refuse("memory of a simulated device: ", core::format_bytes(settings.memory_bytes),
           "; allowed: ", core::format_bytes(kMinMemory), " to ", core::format_bytes(kMaxMemory),
           "; correct DRIVETRAIN_SIM_MEMORY or Settings::memory_bytes");
  if (settings.bandwidth < 0)
    refuse("bandwidth of a simulated device: ", settings.bandwidth,
           "; allowed: bytes a second, 0 for no limit; correct Settings::bandwidth");
}

}  // namespace drivetrain::sim
