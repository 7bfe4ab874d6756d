// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace at {
struct PrivateUse1HooksInterface;
}
namespace c10::impl {
struct DeviceGuardImplInterface;
}

namespace drivetrain::sim {

// What LibTorch asks for devices, streams and events, and for generators and pinned memory.
const c10::impl::DeviceGuardImplInterface* new_guard();
at::PrivateUse1HooksInterface* new_hooks();

}  // namespace drivetrain::sim
