// SPDX-License-Identifier: Apache-2.0
#include "hardware/facts/drivers.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <unistd.h>

#include "core/text.h"

namespace drivetrain::hardware {

using core::str;

namespace fs = std::filesystem;

namespace {

// The oldest drivers are NVIDIA's "minor version compatibility" table.
constexpr std::array kRows = {
    DriverRow{.backend = "cuda",
              .vendor = "NVIDIA",
              .visible_devices = "CUDA_VISIBLE_DEVICES",
              .driver_path = "/proc/driver/nvidia/version",
              .version_path = "/proc/driver/nvidia/version",
              .device_prefix = "/dev/nvidia",
              .pci_vendor = "",
              .monitor = "nvidia-smi",
              .library = "libtorch_cuda.so",
              .oldest_drivers = {{{11, "450.80.02"}, {12, "525.60.13"}, {13, "580.65.06"}}}},
    DriverRow{.backend = "cuda",  // LibTorch for ROCm calls its devices so
              .vendor = "AMD",
              .visible_devices = "HIP_VISIBLE_DEVICES",
              .driver_path = "/dev/kfd",
              .version_path = "/sys/module/amdgpu/version",
              .device_prefix = "/dev/dri/renderD",
              .pci_vendor = "0x1002",
              .is_also_for_display = true,
              .monitor = "rocm-smi",
              .library = "libtorch_hip.so"},
    DriverRow{.backend = "npu",
              .vendor = "Huawei",
              .visible_devices = "ASCEND_RT_VISIBLE_DEVICES",
              .driver_path = "/dev/davinci_manager",
              .version_path = "/usr/local/Ascend/driver/version.info",
              .device_prefix = "/dev/davinci",
              .pci_vendor = "",
              .monitor = "npu-smi",
              .library = ""},
    DriverRow{.backend = "xpu",
              .vendor = "Intel",
              .visible_devices = "ZE_AFFINITY_MASK",
              .driver_path = "",
              .version_path = "",
              .device_prefix = "/dev/dri/renderD",
              .pci_vendor = "0x8086",
              .is_also_for_display = true,
              .monitor = "xpu-smi",
              .library = "libtorch_xpu.so"},
    DriverRow{.backend = "mlu",
              .vendor = "Cambricon",
              .visible_devices = "MLU_VISIBLE_DEVICES",
              .driver_path = "/dev/cambricon_ctl",
              .version_path = "",
              .device_prefix = "/dev/cambricon_dev",
              .pci_vendor = "",
              .monitor = "cnmon",
              .library = ""},
    DriverRow{.backend = "musa",
              .vendor = "Moore Threads",
              .visible_devices = "MUSA_VISIBLE_DEVICES",
              .driver_path = "",
              .version_path = "",
              .device_prefix = "/dev/mtgpu.",
              .pci_vendor = "",
              .monitor = "mthreads-gmi",
              .library = ""},
    DriverRow{.backend = "hpu",
              .vendor = "Habana",
              .visible_devices = "HABANA_VISIBLE_MODULES",
              .driver_path = "/sys/module/habanalabs",
              .version_path = "/sys/module/habanalabs/version",
              .device_prefix = "/dev/accel/accel",
              .pci_vendor = "0x1da3",
              .monitor = "hl-smi",
              .library = ""},
    DriverRow{.backend = "sdaa",
              .vendor = "Tecorigin",
              .visible_devices = "SDAA_VISIBLE_DEVICES",
              .driver_path = "",
              .version_path = "",
              .device_prefix = "",
              .pci_vendor = "",
              .monitor = "teco-smi",
              .library = ""},
};

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "vendor" or "class" of the PCI device behind /dev/dri/renderD128 or /dev/accel/accel0.
std::string pci_fact(const fs::path& device, const char* fact, const std::string& root) {
  const char* kind = device.parent_path().filename() == "dri" ? "drm" : "accel";
  std::ifstream file(
      str(root, "/sys/class/", kind, "/", device.filename().string(), "/device/", fact));
  std::string value;
  file >> value;
  return value;
}

// A VGA controller; accelerators are display controllers of another kind, or processors.
bool is_graphics_chip(const fs::path& device, const std::string& root) {
  return pci_fact(device, "class", root).starts_with("0x0300");
}

std::vector<std::string> device_files(const DriverRow& row, const std::string& root) {
  std::vector<std::pair<int, std::string>> found;
  if (row.device_prefix.empty()) return {};
  const fs::path prefix(row.device_prefix);
  const std::string stem = prefix.filename().string();
  std::error_code error;  // no such folder: no devices
  for (const auto& entry : fs::directory_iterator(root + prefix.parent_path().string(), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(stem) || !is_digits(name.substr(stem.size())) || name.size() > 40)
      continue;
    if (!row.pci_vendor.empty() && pci_fact(entry.path(), "vendor", root) != row.pci_vendor)
      continue;
    found.emplace_back(std::atoi(name.c_str() + stem.size()),
                       (prefix.parent_path() / name).string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  paths.reserve(found.size());
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

// The first word of the file like 535.104.05; "Version=23.0.rc2" gives 23.0.rc2.
std::string version_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    const std::string text = word.substr(word.find('=') + 1);
    const size_t dot = text.find('.');
    if (dot != std::string::npos && is_digits(text.substr(0, dot))) return text;
  }
  return "";
}

const DriverRow* row_of(std::string_view backend) {
  const auto* row = std::find_if(kRows.begin(), kRows.end(), [&](const DriverRow& candidate) {
    return candidate.backend == backend;
  });
  return row == kRows.end() ? nullptr : row;
}

std::vector<long> numbers(std::string_view version) {
  std::vector<long> parts;
  for (const std::string& part : core::split(version, '.'))
    parts.push_back(std::strtol(part.c_str(), nullptr, 10));
  return parts;
}

// What a person would look at: the driver, and the first of its devices.
std::string evidence(const DriverFound& found) {
  std::string text;
  if (found.is_loaded)
    text =
        str("the ", found.row->vendor, " driver", found.version.empty() ? "" : " " + found.version);
  if (found.devices.empty()) return text;
  text += str(text.empty() ? "" : ", ", found.devices.front());
  const size_t more = found.devices.size() - 1;
  return more == 0 ? text : str(text, " and ", more, " more");
}

}  // namespace

std::span<const DriverRow> driver_rows() { return kRows; }

bool is_library_variable(std::string_view name) {
  constexpr std::array<std::string_view, 16> prefixes = {
      "OMP_",  "MKL_",  "KMP_",  "GOMP_", "ONEDNN_",  "DNNL_",   "ATEN_", "TORCH_",
      "CUDA_", "NCCL_", "GLOO_", "HCCL_", "PYTORCH_", "ASCEND_", "CCL_",  "UCX_"};
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::string visible_devices_variable(std::string_view backend) {
  const DriverRow* row = row_of(backend);
  return row == nullptr ? "" : std::string(row->visible_devices);
}

std::string driver_path(std::string_view backend) {
  const DriverRow* row = row_of(backend);
  return row == nullptr ? "" : std::string(row->driver_path);
}

DriverFound look_for_driver(const DriverRow& row, const std::string& root) {
  DriverFound found;
  found.row = &row;
  std::error_code error;  // not readable: not there, as far as this process goes
  found.is_loaded =
      !row.driver_path.empty() && fs::exists(root + std::string(row.driver_path), error);
  if (!row.version_path.empty()) found.version = version_in(root + std::string(row.version_path));
  found.devices = device_files(row, root);
  for (const std::string& device : found.devices)
    if (::access((root + device).c_str(), R_OK | W_OK) != 0) found.refused.push_back(device);
  const bool shared = row.is_also_for_display;
  found.computing = static_cast<int>(std::count_if(
      found.devices.begin(), found.devices.end(),
      [&](const std::string& device) { return !shared || !is_graphics_chip(device, root); }));
  found.is_for_computing = found.computing > 0 || (found.is_loaded && !shared);
  return found;
}

std::vector<DriverFound> find_drivers(const std::string& root) {
  std::vector<DriverFound> all;
  for (const DriverRow& row : kRows)
    if (DriverFound found = look_for_driver(row, root); found.is_present())
      all.push_back(std::move(found));
  return all;
}

std::string evidence_of_device(std::string_view backend, const std::string& root) {
  for (const DriverRow& row : kRows) {
    if (row.backend != backend) continue;
    const DriverFound found = look_for_driver(row, root);
    if (found.is_for_computing) return evidence(found);
  }
  return "";
}

std::string driver_needed(const DriverRow& row, const std::string& version, int runtime_major) {
  if (version.empty()) return "";
  for (const OldestDriver& oldest : row.oldest_drivers)
    if (oldest.runtime_major == runtime_major && !oldest.driver.empty() &&
        numbers(version) < numbers(oldest.driver))
      return std::string(oldest.driver);
  return "";
}

SeenDevices seen_devices(const std::string& root) {
  SeenDevices seen;
  for (const DriverRow& row : kRows) {
    const std::string variable(row.visible_devices);
    const char* value = std::getenv(variable.c_str());
    std::vector<std::string> devices;
    if (value != nullptr)
      for (const VisibleDevice& device : parse_visible_devices(variable, value))
        devices.push_back(device.text);
    else
      for (int i = 0; i < look_for_driver(row, root).computing; ++i)
        devices.push_back(std::to_string(i));
    if (!devices.empty()) return {variable, std::move(devices)};
  }
  return seen;
}

}  // namespace drivetrain::hardware
