// SPDX-License-Identifier: Apache-2.0
// One row a backend, in the order in which auto-detection asks. A new one is a row here; what its
// driver shows without LibTorch is a row of facts/drivers.cpp.
#include "hardware/table.h"

#include <drivetrain/backends.h>

#include <algorithm>

#include "hardware/facts/drivers.h"

namespace drivetrain::hardware {
namespace {

template <class A>
std::shared_ptr<BaseAccelerator> make(const AcceleratorFacts& facts) {
  return std::make_shared<A>(facts);
}

// A device that a PrivateUse1 plugin of this name brings.
AcceleratorFacts plugin(const std::string& name, std::string communication, int priority) {
  return {.name = name,
          .type = c10::DeviceType::PrivateUse1,
          .communication_backend = std::move(communication),
          .visible_devices = visible_devices_variable(name),
          .priority = priority,
          .plugin = name,
          .driver_path = driver_path(name)};
}

AcceleratorFacts cuda() {
  return {.name = "cuda",
          .type = c10::DeviceType::CUDA,
          .communication_backend = "nccl",
          .visible_devices = visible_devices_variable("cuda"),
          .priority = 10,
          .plugin = "",
          .driver_path = driver_path("cuda")};
}

AcceleratorFacts xpu() {
  return {.name = "xpu",
          .type = c10::DeviceType::XPU,
          .communication_backend = "xccl",
          .visible_devices = visible_devices_variable("xpu"),
          .priority = 30,
          .plugin = "",
          .driver_path = driver_path("xpu")};
}

AcceleratorFacts mps() {
  Capabilities can;
  can.set_device = false;
  can.memory_peaks = false;
  can.memory_fraction = true;
  can.pinned_memory = false;
  return {.name = "mps",
          .type = c10::DeviceType::MPS,
          .communication_backend = "gloo",
          .visible_devices = "",
          .priority = 40,
          .plugin = "",
          .driver_path = "",
          .capabilities = can};
}

AcceleratorFacts mtia() {
  return {.name = "mtia",
          .type = c10::DeviceType::MTIA,
          .communication_backend = "hccl",
          .visible_devices = "",
          .priority = 70,
          .plugin = "",
          .driver_path = ""};
}

AcceleratorFacts hpu() {
  return {.name = "hpu",
          .type = c10::DeviceType::HPU,
          .communication_backend = "hccl",
          .visible_devices = visible_devices_variable("hpu"),
          .priority = 80,
          .plugin = "",
          .driver_path = driver_path("hpu")};
}

AcceleratorFacts cpu() {
  Capabilities can;
  can.set_device = false;
  can.properties = can.utilization = true;
  can.memory_snapshot = can.memory_fraction = true;
  can.pinned_memory = false;
  can.blocking_events = true;
  can.synchronous = true;
  return {.name = "cpu",
          .type = c10::DeviceType::CPU,
          .communication_backend = "gloo",
          .visible_devices = "",
          .priority = 1000,
          .plugin = "",
          .driver_path = "",
          .capabilities = can};
}

}  // namespace

const std::vector<Backend>& builtin_backends() {
  static const std::vector<Backend> table = {
      {cuda(), make<CudaAccelerator>},
      {plugin("npu", "hccl", 20), {}},
      {xpu(), {}},
      {mps(), make<MpsAccelerator>},
      {plugin("mlu", "cncl", 50), {}},
      {plugin("musa", "mccl", 60), {}},
      {mtia(), {}},
      {hpu(), {}},
      {plugin("sdaa", "tccl", 90), {}},
      {cpu(), make<CpuAccelerator>},
  };
  return table;
}

const AcceleratorFacts& builtin_facts(std::string_view name) {
  return std::find_if(builtin_backends().begin(), builtin_backends().end(),
                      [name](const Backend& backend) { return backend.facts.name == name; })
      ->facts;
}

}  // namespace drivetrain::hardware
