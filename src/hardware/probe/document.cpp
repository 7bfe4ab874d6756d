// SPDX-License-Identifier: Apache-2.0
#include "hardware/probe/document.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <drivetrain/hardware.h>
#include <link.h>
#include <torch/version.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "core/text.h"
#include "hardware/facts/drivers.h"

namespace drivetrain::probe {
namespace {

using core::str;

// As in TORCH_ABI_VERSION: a byte each. "" where LibTorch does not tell.
std::string running_version() {
  const auto version =
      reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "aoti_torch_abi_version"));
  if (version == nullptr) return "";
  const uint64_t number = version();
  return str(number >> 56 & 0xff, ".", number >> 48 & 0xff, ".", number >> 40 & 0xff);
}

std::filesystem::path libtorch_folder() {
  link_map* library = nullptr;
  void* handle = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&library)) != 0)
    return {};
  std::error_code error;  // then as it was written
  const auto path = std::filesystem::canonical(library->l_name, error);
  return (error ? std::filesystem::path(library->l_name) : path).parent_path();
}

// The commit: the wheel keeps it in version.py, the zip in build-hash; "" elsewhere.
std::string git_commit(const std::filesystem::path& folder) {
  std::string hash;
  if (std::ifstream(folder.parent_path() / "build-hash") >> hash) return hash;
  std::ifstream python(folder.parent_path() / "version.py");
  for (std::string line; std::getline(python, line);) {
    const size_t begin = line.find('\'');
    if (line.starts_with("git_version") && begin != std::string::npos)
      return line.substr(begin + 1, line.rfind('\'') - begin - 1);
  }
  return "";
}

Json device_libraries(const std::filesystem::path& folder) {
  Json libraries = Json::array();
  for (const hardware::DriverRow& row : hardware::driver_rows()) {
    if (row.library.empty()) continue;
    const std::string name(row.library);
    std::error_code error;  // not readable: not there
    libraries.push_back({{"name", name},
                         {"present", std::filesystem::exists(folder / name, error)},
                         {"loaded", dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr}});
  }
  return libraries;
}

Json libtorch_json() {
  const std::filesystem::path folder = libtorch_folder();
  return {{"version", running_version()},
          {"built_with", TORCH_VERSION},
          {"cxx11_abi", _GLIBCXX_USE_CXX11_ABI == 1},
          {"folder", folder.string()},
          {"git", git_commit(folder)},
          {"cpu_capability", at::get_cpu_capability()},
          {"threads", at::get_num_threads()},
          {"interop_threads", at::get_num_interop_threads()},
          {"openmp", at::hasOpenMP()},
          {"mkl", at::hasMKL()},
          {"onednn", at::globalContext().hasMKLDNN()},
          {"device_libraries", device_libraries(folder)}};
}

Json names_of(const Capabilities& can) {
  const std::pair<const char*, bool> all[] = {{"set_device", can.set_device},
                                              {"properties", can.properties},
                                              {"utilization", can.utilization},
                                              {"random_numbers", can.random_numbers},
                                              {"memory_stats", can.memory_stats},
                                              {"memory_peaks", can.memory_peaks},
                                              {"memory_info", can.memory_info},
                                              {"memory_snapshot", can.memory_snapshot},
                                              {"memory_fraction", can.memory_fraction},
                                              {"pinned_memory", can.pinned_memory},
                                              {"streams", can.streams},
                                              {"events", can.events},
                                              {"blocking_events", can.blocking_events},
                                              {"interprocess_events", can.interprocess_events},
                                              {"autocast", can.autocast},
                                              {"synchronous", can.synchronous}};
  Json names = Json::array();
  for (const auto& [name, has] : all)
    if (has) names.push_back(name);
  return names;
}

// `read(device)`; what it throws is noted in the device's errors.
template <class Read>
void note(Json& device, const Read& read) {
  try {
    read();
  } catch (const std::exception& error) {
    device["errors"].push_back(core::split(error.what(), '\n').front());
  }
}

Json device_json(const BaseAccelerator& accelerator, int index) {
  const Capabilities can = accelerator.capabilities();
  Json device = {{"index", index}, {"errors", Json::array()}};
  if (can.properties)
    note(device, [&] {
      const DeviceProperties properties = accelerator.get_device_properties(index);
      device["name"] = properties.name;
      device["capability"] = properties.capability.level;
      device["processors"] = properties.multi_processor_count;
    });
  if (can.memory_info)
    note(device, [&] {
      device["memory_bytes"] = accelerator.total_memory(index);
      device["memory_available_bytes"] = accelerator.available_memory(index);
    });
  note(device, [&] { accelerator.synchronize(index); });
  return device;
}

Json accelerator_json(const std::string& name, const std::string& reason, const Step& step) {
  step(str("asking for ", name));
  const auto accelerator = make_accelerator(name);
  const std::string why_not = accelerator->why_unavailable();
  const bool is_available = why_not.empty();
  Json all = {{"name", name},
              {"available", is_available},
              {"reason", reason.empty() ? why_not : reason},
              {"runtime_version", accelerator->get_version()}};
  const int count = is_available ? accelerator->device_count() : 0;
  if (is_available) {
    all["type"] = c10::DeviceTypeName(accelerator->device_type(), true);
    all["communication"] = accelerator->communication_backend();
    all["capabilities"] = names_of(accelerator->capabilities());
  }
  all["devices"] = Json::array();
  for (int index = 0; index < count; ++index) {
    step(str("asking ", name, " for device ", index));
    all["devices"].push_back(device_json(*accelerator, index));
  }
  step(str("asking the vendor's library of ", name));
  all.update(vendor_facts(name, count));
  return all;
}

// What detection says of each, and as a whole; without reasons where it throws.
std::vector<ProbeResult> detect(Json& detection) {
  detection = {{"chosen", nullptr}, {"problem", ""}};
  std::vector<ProbeResult> results;
  try {
    results = probe_report();
  } catch (const std::exception& error) {
    detection["problem"] = error.what();
    for (const std::string& name : registered_accelerators()) results.push_back({name, false, ""});
  }
  for (const ProbeResult& result : results)
    if (result.chosen) detection["chosen"] = result.name;
  return results;
}

}  // namespace

Json make_document(const Step& step) {
  step("loading LibTorch");
  Json document = {{"libtorch", libtorch_json()}, {"communication", communication_backends()}};
  step("detecting an accelerator");
  const std::vector<ProbeResult> results = detect(document["detection"]);
  document["accelerators"] = Json::array();
  for (const ProbeResult& result : results)
    document["accelerators"].push_back(accelerator_json(result.name, result.reason, step));
  step("done");
  return document;
}

}  // namespace drivetrain::probe
