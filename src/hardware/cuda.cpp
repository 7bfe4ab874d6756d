// SPDX-License-Identifier: Apache-2.0
// What LibTorch's device-generic interfaces do not tell of a CUDA device, from the driver's own
// libraries, without their headers: the entry points below are stable parts of the driver's ABI.
#include <ATen/Context.h>
#include <drivetrain/backends.h>
#include <drivetrain/error.h>

#include <array>
#include <cstdio>

#include "core/text.h"
#include "hardware/cuda_allocator.h"
#include "hardware/fork_guard.h"
#include "hardware/table.h"
#include "hardware/vendor_library.h"

namespace drivetrain {

using core::str;

namespace {

// libcuda. 0 is success. Its ordinals heed CUDA_VISIBLE_DEVICES as the runtime's do.
struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*total_memory)(size_t*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*uuid)(unsigned char*, int) = nullptr;
  bool usable = false;

  Driver() {
    const hardware::VendorLibrary library({"libcuda.so.1"});
    usable = library.find("cuInit", init) && library.find("cuDeviceGet", get) &&
             library.find("cuDeviceGetName", name) &&
             library.find("cuDeviceTotalMem_v2", total_memory) &&
             library.find("cuDeviceGetAttribute", attribute) &&
             library.find("cuDeviceGetUuid", uuid) && init(0) == 0;
    if (usable) hardware::note_device_use();
  }
};

[[maybe_unused]] constexpr const char* kWithoutHeaders =
    "Drivetrain was built without CUDA's headers, or for a LibTorch without CUDA";

constexpr int kMultiprocessorCount = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

// libnvidia-ml. Its indices do not heed CUDA_VISIBLE_DEVICES, so devices are named by UUID.
struct Monitor {
  struct Rates {
    unsigned gpu, memory;
  };
  int (*init)() = nullptr;
  int (*by_uuid)(const char*, void**) = nullptr;
  int (*rates)(void*, Rates*) = nullptr;
  bool usable = false;

  Monitor() {
    const hardware::VendorLibrary library({"libnvidia-ml.so.1"});
    usable = library.find("nvmlInit_v2", init) &&
             library.find("nvmlDeviceGetHandleByUUID", by_uuid) &&
             library.find("nvmlDeviceGetUtilizationRates", rates) && init() == 0;
  }
};

const Monitor& monitor() {
  static const Monitor loaded;
  return loaded;
}

std::string uuid_text(const std::array<unsigned char, 16>& bytes) {
  std::string text = "GPU-";
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex.data();
  }
  return text;
}

// Throws HardwareError unless a call of the driver's libraries returned success.
void check(const char* call, const char* function, int status) {
  if (status != 0)
    throw HardwareError(str("cuda: ", call, " failed: ", function, " returned ", status,
                            "; allowed: a device that the driver answers for; check it with "
                            "nvidia-smi"));
}

int ordinal(const char* call, int index) {
  int device = 0;
  check(call, "cuDeviceGet", driver().get(&device, index));
  return device;
}

int attribute(const char* call, int which, int device) {
  int value = 0;
  check(call, "cuDeviceGetAttribute", driver().attribute(&value, which, device));
  return value;
}

}  // namespace

CudaAccelerator::CudaAccelerator() : CudaAccelerator(hardware::builtin_facts("cuda")) {}
CudaAccelerator::CudaAccelerator(AcceleratorFacts facts) : DeviceAccelerator(std::move(facts)) {}

Capabilities CudaAccelerator::capabilities() const {
  Capabilities can = DeviceAccelerator::capabilities();
  can.properties = driver().usable;
  can.utilization = driver().usable && monitor().usable;
#ifdef DRIVETRAIN_HAS_CUDA
  can.memory_fraction = can.memory_snapshot = true;
#endif
  return can;
}

#ifdef DRIVETRAIN_HAS_CUDA
void CudaAccelerator::do_set_memory_fraction(double fraction, int index) const {
  hardware::set_cuda_memory_fraction(fraction, index);
}
std::vector<MemoryBlock> CudaAccelerator::do_memory_snapshot(int index) const {
  return hardware::cuda_live_blocks(index);
}
#else
void CudaAccelerator::do_set_memory_fraction(double, int) const {
  unsupported("set_per_process_memory_fraction", kWithoutHeaders);
}
std::vector<MemoryBlock> CudaAccelerator::do_memory_snapshot(int) const {
  unsupported("memory_snapshot", kWithoutHeaders);
}
#endif

std::string CudaAccelerator::get_version() const {
  if (!at::Context::hasCUDART()) return "";
  const int64_t version = at::Context::versionCUDART();  // 12080 is 12.8
  return str(version / 1000, ".", version % 1000 / 10);
}

DeviceProperties CudaAccelerator::do_properties(int index) const {
  constexpr const char* call = "get_device_properties";
  if (!driver().usable) unsupported(call, "libcuda.so.1 could not be loaded or started");
  const int device = ordinal(call, index);
  std::array<char, 256> name{};
  size_t total = 0;
  check(call, "cuDeviceGetName", driver().name(name.data(), name.size(), device));
  check(call, "cuDeviceTotalMem", driver().total_memory(&total, device));
  const int major = attribute(call, kCapabilityMajor, device);
  const int minor = attribute(call, kCapabilityMinor, device);
  return {.name = name.data(),
          .capability = {.major = major, .minor = minor, .level = str(major, ".", minor)},
          .total_memory = static_cast<int64_t>(total),
          .multi_processor_count = attribute(call, kMultiprocessorCount, device),
          .features = {}};
}

double CudaAccelerator::do_utilization(int index) const {
  constexpr const char* call = "utilization";
  if (!driver().usable || !monitor().usable)
    unsupported(call, "libnvidia-ml.so.1 could not be loaded or started");
  std::array<unsigned char, 16> uuid{};
  void* handle = nullptr;
  Monitor::Rates rates{};
  check(call, "cuDeviceGetUuid", driver().uuid(uuid.data(), ordinal(call, index)));
  check(call, "nvmlDeviceGetHandleByUUID", monitor().by_uuid(uuid_text(uuid).c_str(), &handle));
  check(call, "nvmlDeviceGetUtilizationRates", monitor().rates(handle, &rates));
  return rates.gpu;
}

namespace hardware {

Backend cuda_backend() {
  return {native_facts("cuda", c10::DeviceType::CUDA, "nccl", 10), make<CudaAccelerator>};
}

}  // namespace hardware
}  // namespace drivetrain
