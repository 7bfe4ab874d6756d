// SPDX-License-Identifier: Apache-2.0
// All that is known of this machine and installation, with and without LibTorch.
#pragma once

#include <drivetrain/config.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/env/probe.h"
#include "config/variables.h"
#include "hardware/facts/drivers.h"
#include "hardware/facts/system.h"

namespace drivetrain::cli {

using Environment = std::map<std::string, std::string>;

struct Facts {
  std::string version;  // of Drivetrain
  std::string command;  // path of this program
  hardware::SystemFacts system;
  std::vector<hardware::DriverFound> drivers;
  // Compilers, launchers and the vendors' programs: name and path, "" if not in PATH.
  std::vector<std::pair<std::string, std::string>> programs;
  Environment environment;
  std::vector<config::UnknownVariable> unknown_variables;
  std::string settings_problem;  // what Config says of the environment; "" if it is right
  std::string launcher_problem;  // likewise ProcessFacts
  ProcessFacts process;
  Probe probe;
};

// `probe`: path of drivetrain-probe; "" for the one that belongs to this command.
Facts collect_facts(const std::string& probe, std::chrono::milliseconds limit);

// The variables of `environment` that bear on training, by what reads them.
struct VariableGroups {
  Environment visible_devices, settings, launcher, libraries;
};
VariableGroups group_variables(const Environment& environment);

// One object: sections, each an object or a list.
nlohmann::ordered_json to_json(const Facts& facts);

// The same as text: a section's rows are aligned; keys that end in _bytes are written with units.
std::string to_text(const nlohmann::ordered_json& sections);

}  // namespace drivetrain::cli
