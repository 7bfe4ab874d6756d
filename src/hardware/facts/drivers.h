// SPDX-License-Identifier: Apache-2.0
// What the kernel shows of accelerators, without LibTorch: drivers, device files, and the variables
// that hide devices. Every reader takes the root under which it looks.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/facts/visible_devices.h"

namespace drivetrain::hardware {

// The oldest driver that a runtime of this major version takes.
struct OldestDriver {
  int runtime_major = 0;
  std::string_view driver;
};

// One row a kind of device. What is not known, or does not exist, is "".
struct DriverRow {
  std::string_view backend;          // as in the registry: "cuda"
  std::string_view vendor;           // "NVIDIA"
  std::string_view visible_devices;  // the variable that hides devices
  std::string_view driver_path;      // exists where the driver is loaded
  std::string_view version_path;     // a file whose first dotted number is the driver's version
  std::string_view device_prefix;    // "/dev/nvidia": one device is /dev/nvidia0
  std::string_view pci_vendor;       // counts only where the device's PCI vendor is this: "0x8086"
  // The same files are there for the graphics chip of an ordinary desktop: PCI classes tell.
  bool is_also_for_display = false;
  std::string_view monitor;  // the vendor's program that lists devices
  std::string_view library;  // LibTorch's library for the backend; "" where a plugin brings it
  std::array<OldestDriver, 3> oldest_drivers = {};
};

// In the order in which auto-detection asks. Two rows can be of one backend.
std::span<const DriverRow> driver_rows();

// Do libraries that LibTorch computes or communicates with read this variable?
bool is_library_variable(std::string_view name);

// The variable of the first row of `backend`, and its driver's path; "" for one that has no row.
std::string visible_devices_variable(std::string_view backend);
std::string driver_path(std::string_view backend);

struct DriverFound {
  const DriverRow* row = nullptr;
  bool is_loaded = false;
  std::string version;               // "" where the driver tells none
  std::vector<std::string> devices;  // the device files, by number
  std::vector<std::string> refused;  // those of them that this process may not open
  int computing = 0;                 // how many of them are more than a desktop's graphics chip
  bool is_for_computing = false;     // a driver or device that no ordinary desktop has

  bool is_present() const { return is_loaded || !devices.empty(); }
};

DriverFound look_for_driver(const DriverRow& row, const std::string& root = "");

// Those that are present, one for each row at most.
std::vector<DriverFound> find_drivers(const std::string& root = "");

// "the NVIDIA driver 535.104.05, /dev/nvidia0 and 7 more": what shows that `backend` has hardware
// for computing here; "" where nothing does.
std::string evidence_of_device(std::string_view backend, const std::string& root = "");

// Is driver `version` older than the oldest that a runtime of `runtime_major` takes? Then that one;
// "" where it is new enough, or where the row does not tell.
std::string driver_needed(const DriverRow& row, const std::string& version, int runtime_major);

// The devices that a program would see: what the variable of the first row lists that has one set,
// or the devices that the kernel shows. `variable` is "" where nothing is there.
struct SeenDevices {
  std::string variable;              // the one that hides devices of this kind
  std::vector<std::string> devices;  // its entries, verbatim, or 0, 1, 2, ...
};

// **Throws ConfigError if** a variable does not parse.
SeenDevices seen_devices(const std::string& root = "");

}  // namespace drivetrain::hardware
