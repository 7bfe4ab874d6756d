// SPDX-License-Identifier: Apache-2.0
#include "cli/env/facts.h"

#include <drivetrain/error.h>

#include <algorithm>
#include <filesystem>

#include <unistd.h>

#include "cli/launch/command.h"
#include "cli/launch/plan.h"

namespace drivetrain::cli {
namespace {

using Json = nlohmann::ordered_json;
using hardware::kUnlimited;

Environment whole_environment() {
  Environment all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> find_programs() {
  std::vector<std::string> names = {"c++", "g++", "clang++", "cmake", "mpirun", "srun", "torchrun"};
  for (const hardware::DriverRow& row : hardware::driver_rows())
    if (!row.monitor.empty()) names.emplace_back(row.monitor);
  std::vector<std::pair<std::string, std::string>> found;
  found.reserve(names.size());
  for (const std::string& name : names) found.emplace_back(name, find_program(name).path);
  return found;
}

void read_settings(Facts& facts) {
  std::vector<std::string> names;
  for (const auto& [name, value] : facts.environment) names.push_back(name);
  facts.unknown_variables = config::unknown_variables(names);
  try {
    (void)Config::from_environment();
  } catch (const ConfigError& error) {
    facts.settings_problem = error.what_happened();
  }
  try {
    facts.process = ProcessFacts::from_environment();
  } catch (const ConfigError& error) {
    facts.launcher_problem = error.what_happened();
  }
}

Json limit_json(const hardware::Limit& limit, const std::string& unit = "") {
  const auto value = [](int64_t number) {
    return number == kUnlimited ? Json("unlimited") : Json(number);
  };
  return {{"soft" + unit, value(limit.soft)}, {"hard" + unit, value(limit.hard)}};
}

Json system_json(const hardware::SystemFacts& system) {
  Json clock = nullptr;
  if (system.clock_is_synchronized) clock = *system.clock_is_synchronized;
  return {{"hostname", system.hostname},
          {"kernel", system.kernel},
          {"architecture", system.architecture},
          {"distribution", system.distribution},
          {"clock_synchronized", clock}};
}

Json processor_json(const hardware::SystemFacts& system) {
  return {{"name", system.processor},
          {"cores", system.cores},
          {"allowed_cores", system.allowed_cores},
          {"quota", system.quota ? Json(*system.quota) : Json(nullptr)},
          {"usable_cores", system.usable_cores()}};
}

Json memory_json(const hardware::SystemFacts& system) {
  Json memory = {{"machine_bytes", system.machine_memory},
                 {"allowed_bytes", system.memory.total},
                 {"available_bytes", system.memory.available},
                 {"shm_bytes", nullptr},
                 {"shm_available_bytes", nullptr}};
  if (!system.shm) return memory;
  memory["shm_bytes"] = system.shm->total;
  memory["shm_available_bytes"] = system.shm->available;
  return memory;
}

Json limits_json(const hardware::SystemFacts& system) {
  return {{"open_files", limit_json(system.open_files)},
          {"processes", limit_json(system.processes)},
          {"locked_memory", limit_json(system.locked_memory, "_bytes")},
          {"address_space", limit_json(system.address_space, "_bytes")}};
}

Json drivers_json(const std::vector<hardware::DriverFound>& drivers) {
  Json all = Json::array();
  for (const hardware::DriverFound& driver : drivers)
    all.push_back({{"vendor", driver.row->vendor},
                   {"backend", driver.row->backend},
                   {"loaded", driver.is_loaded},
                   {"version", driver.version},
                   {"devices", driver.devices},
                   {"not_allowed", driver.refused}});
  return all;
}

Json environment_json(const Facts& facts) {
  const VariableGroups groups = group_variables(facts.environment);
  const auto in = [](const std::string& group, const Environment& variables, Json& all) {
    for (const auto& [name, value] : variables)
      all.push_back({{"name", name}, {"value", value}, {"read_by", group}});
  };
  Json all = Json::array();
  in("devices", groups.visible_devices, all);
  in("drivetrain", groups.settings, all);
  in("launchers", groups.launcher, all);
  in("libraries", groups.libraries, all);
  for (Json& variable : all)
    for (const config::UnknownVariable& unknown : facts.unknown_variables)
      if (variable["name"] == unknown.name) variable["read_by"] = "nothing: unknown";
  return all;
}

Json probe_json(const Probe& probe) {
  return {{"path", probe.path},
          {"state", name_of(probe.state)},
          {"problem", probe.problem},
          {"seconds", probe.seconds},
          {"last_lines", probe.lines}};
}

}  // namespace

Facts collect_facts(const std::string& probe, std::chrono::milliseconds limit) {
  Facts facts;
  std::error_code error;  // no /proc: the path stays empty
  facts.version = DRIVETRAIN_VERSION;
  facts.command = std::filesystem::read_symlink("/proc/self/exe", error).string();
  facts.system = hardware::system_facts();
  facts.drivers = hardware::find_drivers();
  facts.programs = find_programs();
  facts.environment = whole_environment();
  read_settings(facts);
  facts.probe = ask_probe(probe, limit);
  return facts;
}

VariableGroups group_variables(const Environment& environment) {
  VariableGroups groups;
  const std::vector<std::string> others = config::other_names();
  for (const auto& [name, value] : environment) {
    const auto hides_devices = [&name = name](const hardware::DriverRow& row) {
      return row.visible_devices == name;
    };
    const auto rows = hardware::driver_rows();
    if (std::any_of(rows.begin(), rows.end(), hides_devices))
      groups.visible_devices[name] = value;
    else if (name.starts_with("DRIVETRAIN_") ||
             std::find(others.begin(), others.end(), name) != others.end())
      groups.settings[name] = value;
    else if (is_launcher_variable(name))
      groups.launcher[name] = value;
    else if (hardware::is_library_variable(name) || name == "LD_LIBRARY_PATH" ||
             name == "LD_PRELOAD")
      groups.libraries[name] = value;
  }
  return groups;
}

Json to_json(const Facts& facts) {
  Json programs = Json::object();
  for (const auto& [name, path] : facts.programs)
    programs[name] = path.empty() ? Json(nullptr) : Json(path);
  Json all = {{"drivetrain", {{"version", facts.version}, {"command", facts.command}}},
              {"system", system_json(facts.system)},
              {"processor", processor_json(facts.system)},
              {"memory", memory_json(facts.system)},
              {"limits", limits_json(facts.system)},
              {"drivers", drivers_json(facts.drivers)},
              {"programs", programs},
              {"environment", environment_json(facts)},
              {"probe", probe_json(facts.probe)}};
  if (facts.probe.document.is_object()) all.update(facts.probe.document);
  return all;
}

}  // namespace drivetrain::cli
