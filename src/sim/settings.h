// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <drivetrain_sim/sim.h>

#include <cstdint>

namespace drivetrain::sim {

constexpr int kMaxDevices = 64;
constexpr int64_t kMinMemory = int64_t{1} << 20;
constexpr int64_t kMaxMemory = int64_t{1} << 38;  // 256 GiB, for the address space

// **Throws ConfigError if** a setting is out of its range.
void check(const Settings& settings);

}  // namespace drivetrain::sim
