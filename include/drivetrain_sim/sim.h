// SPDX-License-Identifier: Apache-2.0
// A simulated accelerator: several devices with memory, streams and events of their own, run by
// the CPU. It lets a program meet on a laptop what it will meet on real devices: work that is done
// later, memory that ends and that the host cannot touch, tensors on the wrong device.
//
//   drivetrain::sim::load({.devices = 2, .memory_bytes = 64 << 20});
//   auto accelerator = drivetrain::get_accelerator();  // "sim", of device type PrivateUse1
//
// A program that does not link this library gets it by DRIVETRAIN_SIM_DEVICES=2 in its environment.
// docs/simulated.md says what is simulated and what is not.
#pragma once

#include <cstdint>

namespace drivetrain::sim {

struct Settings {
  int devices = 2;                          // 1 to 64; DRIVETRAIN_SIM_DEVICES
  int64_t memory_bytes = int64_t{1} << 30;  // of each device, at least 1 MiB; DRIVETRAIN_SIM_MEMORY
  // Bytes a second between host and device and between devices, each way of each device; 0: as
  // fast as the machine copies. DRIVETRAIN_SIM_BANDWIDTH, as 1GiB.
  int64_t bandwidth = 0;
  bool protect = true;  // the host cannot touch device memory; DRIVETRAIN_SIM_PROTECT

  // The defaults above, with what the environment sets. **Throws ConfigError if** a value is wrong.
  static Settings from_environment();
};

// Makes the devices known to LibTorch as PrivateUse1 devices called "sim", and to the registry of
// accelerators. No device is touched, and no thread is started, before the first use. Call it once,
// before the first backward of the process: LibTorch's engine counts devices then. A second call
// changes nothing. **Throws ConfigError if** a setting is out of its range or differs from those of
// the first call, HardwareError if another PrivateUse1 backend is loaded.
void load(const Settings& settings = Settings::from_environment());

bool is_loaded();

// Work of that length for the current stream of the current device; returns at once.
void sleep(double milliseconds);

// While broken every call to the driver fails with "simulated driver error 700": new work,
// allocation of memory, synchronising, statistics. Memory can still be freed.
void break_driver(bool broken);

}  // namespace drivetrain::sim
