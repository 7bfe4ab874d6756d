// SPDX-License-Identifier: Apache-2.0
// Three small simulated devices, there before main.
#pragma once

#include <c10/core/Device.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <drivetrain_sim/sim.h>

#include "elapsed.h"

namespace drivetrain::sim {

inline const Settings kSettings{.devices = 3, .memory_bytes = int64_t{64} << 20};
inline const bool loaded = (load(kSettings), true);

inline c10::Device at(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

inline std::shared_ptr<BaseAccelerator> accelerator() {
  static const auto instance = make_accelerator("sim");
  return instance;
}

}  // namespace drivetrain::sim
