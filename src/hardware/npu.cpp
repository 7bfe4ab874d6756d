// SPDX-License-Identifier: Apache-2.0
// Ascend NPUs: what CANN, the vendor's runtime, tells beyond LibTorch's device-generic interfaces.
// The entry points are of AscendCL, documented in the CANN API reference.
#include <drivetrain/backends.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <link.h>

#include "core/text.h"
#include "hardware/table.h"
#include "hardware/vendor_library.h"

namespace drivetrain {

using core::str;

namespace {

// aclrtUtilizationInfo: percent, of the matrix and vector units, the CPUs and the memory.
struct Utilization {
  int cube, vector, cpu, memory;
  void* extension;
};

// aclCANNPackageVersion starts with the version as text; the rest, which has grown, is room.
using PackageVersion = std::array<char, 4096>;
constexpr size_t kVersionLength = 128;
constexpr int kWholeCann = 0;  // ACL_PKG_NAME_CANN

// AscendCL. 0 is success.
struct Runtime {
  const char* (*soc_name)() = nullptr;
  int (*utilization)(int, Utilization*) = nullptr;
  int (*package_version)(int, void*) = nullptr;
  int (*version)(int*, int*, int*) = nullptr;

  Runtime() {
    const hardware::VendorLibrary library({"libascendcl.so", "libacl_rt.so"});
    library.find("aclrtGetSocName", soc_name);
    library.find("aclrtGetDeviceUtilizationRate", utilization);
    library.find("aclsysGetCANNVersion", package_version);
    library.find("aclrtGetVersion", version);
  }
};

const Runtime& runtime() {
  static const Runtime loaded;
  return loaded;
}

// "CANN 8.0.RC3", or the version of AscendCL where CANN does not say its own.
std::string cann_version() {
  PackageVersion package{};
  if (runtime().package_version != nullptr &&
      runtime().package_version(kWholeCann, package.data()) == 0)
    return str("CANN ", std::string(package.data(), strnlen(package.data(), kVersionLength)));
  int major = 0, minor = 0, patch = 0;
  if (runtime().version != nullptr && runtime().version(&major, &minor, &patch) == 0)
    return str("AscendCL ", major, ".", minor, ".", patch);
  return "";
}

// The file that the loaded library `name` came from; "" where it is not loaded.
std::filesystem::path path_of(const char* name) {
  const hardware::VendorLibrary library({name}, RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (!library.is_loaded() ||
      dlinfo(library.handle(), RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0)
    return {};
  return map->l_name;
}

// "torch_npu 2.7.1", from the Python package that its library is part of: it tells it nowhere else.
std::string plugin_version() {
  const auto library = path_of("libtorch_npu.so");
  if (library.empty()) return "";
  std::ifstream file(library.parent_path().parent_path() / "version.py");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("__version__")) {
      const size_t first = line.find_first_of("'\""), last = line.find_last_of("'\"");
      if (first < last) return str("torch_npu ", line.substr(first + 1, last - first - 1));
    }
  return "";
}

}  // namespace

NpuAccelerator::NpuAccelerator() : NpuAccelerator(hardware::builtin_facts("npu")) {}
NpuAccelerator::NpuAccelerator(AcceleratorFacts facts) : DeviceAccelerator(std::move(facts)) {}

Capabilities NpuAccelerator::capabilities() const {
  Capabilities can = DeviceAccelerator::capabilities();
  can.properties = runtime().soc_name != nullptr;
  can.utilization = runtime().utilization != nullptr;
  return can;
}

std::string NpuAccelerator::get_version() const {
  const std::string cann = cann_version(), plugin = plugin_version();
  return cann.empty() || plugin.empty() ? cann + plugin : str(cann, ", ", plugin);
}

DeviceProperties NpuAccelerator::do_properties(int index) const {
  if (runtime().soc_name == nullptr)
    unsupported("get_device_properties", "libascendcl.so, or aclrtGetSocName in it, was not found");
  const char* name = runtime().soc_name();
  if (name == nullptr)
    throw HardwareError(
        "npu: get_device_properties failed: aclrtGetSocName knows no device; allowed: a device "
        "that "
        "CANN answers for; check it with npu-smi");
  DeviceProperties properties;
  properties.name = name;
  properties.capability.level = name;
  properties.total_memory = do_memory_info(index).second;
  return properties;
}

double NpuAccelerator::do_utilization(int index) const {
  if (runtime().utilization == nullptr)
    unsupported("utilization",
                "libascendcl.so, or aclrtGetDeviceUtilizationRate in it, was not found");
  Utilization percent{};
  if (const int status = runtime().utilization(index, &percent); status != 0)
    throw HardwareError(str("npu: utilization failed: aclrtGetDeviceUtilizationRate returned ",
                            status,
                            "; allowed: a device that CANN answers for; check it with "
                            "npu-smi"));
  return std::max(percent.cube, percent.vector);
}

namespace hardware {

Backend npu_backend() { return {plugin_facts("npu", "hccl", 20, "npu"), make<NpuAccelerator>}; }

}  // namespace hardware
}  // namespace drivetrain
