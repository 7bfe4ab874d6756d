// SPDX-License-Identifier: Apache-2.0
// A small PrivateUse1 accelerator, "fake": two devices in host memory with 256 MiB each, its own
// streams, events and generators. Its work is done at once. It is there to run the device-generic
// backend where there is no accelerator.
#pragma once

#include <cstddef>

namespace drivetrain::fake {

constexpr int kDevices = 2;
constexpr size_t kBytes = size_t{256} << 20;

// Registers it with LibTorch and with the registry. Once in a process, before the first use.
void install();

// Makes the device's calls fail with a driver's message, or work again.
void break_driver(bool broken);

}  // namespace drivetrain::fake
