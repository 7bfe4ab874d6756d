// SPDX-License-Identifier: Apache-2.0
// The backends. docs/new-backend.md tells how to add one.
#include "hardware/table.h"

#include <algorithm>

#include "hardware/facts/drivers.h"

namespace drivetrain::hardware {

#define DRIVETRAIN_BACKEND(name) Backend name##_backend();
#include "hardware/backends.def"

AcceleratorFacts native_facts(const std::string& name, c10::DeviceType type,
                              std::string communication, int priority) {
  return {.name = name,
          .type = type,
          .communication_backend = std::move(communication),
          .visible_devices = visible_devices_variable(name),
          .priority = priority,
          .plugin = "",
          .driver_path = driver_path(name)};
}

AcceleratorFacts plugin_facts(const std::string& name, std::string communication, int priority,
                              const std::string& plugin) {
  AcceleratorFacts facts =
      native_facts(name, c10::DeviceType::PrivateUse1, std::move(communication), priority);
  facts.plugin = plugin;
  return facts;
}

Backend xpu_backend() { return {native_facts("xpu", c10::DeviceType::XPU, "xccl", 30), {}}; }
Backend mlu_backend() { return {plugin_facts("mlu", "cncl", 50, "mlu"), {}}; }
Backend musa_backend() { return {plugin_facts("musa", "mccl", 60, "musa"), {}}; }
Backend mtia_backend() { return {native_facts("mtia", c10::DeviceType::MTIA, "hccl", 70), {}}; }
Backend hpu_backend() { return {native_facts("hpu", c10::DeviceType::HPU, "hccl", 80), {}}; }
Backend sdaa_backend() { return {plugin_facts("sdaa", "tccl", 90, "sdaa"), {}}; }

const std::vector<Backend>& builtin_backends() {
  static const std::vector<Backend> table = [] {
    std::vector<Backend> rows = {
#define DRIVETRAIN_BACKEND(name) name##_backend(),
#include "hardware/backends.def"
    };
    std::stable_sort(rows.begin(), rows.end(), [](const Backend& a, const Backend& b) {
      return a.facts.priority < b.facts.priority;
    });
    return rows;
  }();
  return table;
}

const AcceleratorFacts& builtin_facts(std::string_view name) {
  return std::find_if(builtin_backends().begin(), builtin_backends().end(),
                      [name](const Backend& backend) { return backend.facts.name == name; })
      ->facts;
}

}  // namespace drivetrain::hardware
