// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/config.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/variables.h"
#include "core/environment.h"
#include "core/text.h"

#include <unistd.h>

namespace drivetrain {

using core::str;

namespace {

// One row a setting. `apply` throws ConfigError, with `what` as the source, if the text is wrong.
struct Setting {
  const char* name;
  const char* alias;  // Accelerate's name for it, or null.
  void (*apply)(Config& config, const std::string& what, const std::string& text);
};

constexpr Setting kSettings[] = {
    {"DRIVETRAIN_ACCELERATOR", nullptr,
     [](Config& config, const std::string&, const std::string& text) {
       config.accelerator = core::lower(core::trim(text));
     }},
    {"DRIVETRAIN_CPU", "ACCELERATE_USE_CPU",
     [](Config& config, const std::string& what, const std::string& text) {
       config.cpu = core::parse_bool(what, text);
     }},
    {"DRIVETRAIN_TIMEOUT", nullptr,
     [](Config& config, const std::string& what, const std::string& text) {
       const double seconds = core::parse_double(what, text, 0.001, 1e7);
       config.timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
     }},
    {"DRIVETRAIN_DEBUG", "ACCELERATE_DEBUG_MODE",
     [](Config& config, const std::string& what, const std::string& text) {
       config.debug = core::parse_bool(what, text);
     }},
};

// Read elsewhere: set by the launcher for its processes, or by other rooms.
constexpr const char* kReadElsewhere[] = {
    "DRIVETRAIN_STORE_FD",         "DRIVETRAIN_ERROR_FILE",     "DRIVETRAIN_LOG_LEVEL",
    "DRIVETRAIN_TERMINAL_COLUMNS", "DRIVETRAIN_CPU_CAPABILITY", "DRIVETRAIN_SIM_DEVICES",
    "DRIVETRAIN_SIM_MEMORY",       "DRIVETRAIN_SIM_BANDWIDTH",  "DRIVETRAIN_SIM_PROTECT",
};

void apply(const Setting& setting, Config& config) {
  const auto text = core::environment(setting.name);
  if (text) setting.apply(config, str("environment variable ", setting.name), *text);
  const auto alias_text = setting.alias ? core::environment(setting.alias) : std::nullopt;
  if (!alias_text) return;
  Config other = config;
  setting.apply(other, str("environment variable ", setting.alias), *alias_text);
  if (text && !(other == config))
    throw ConfigError(str("environment variable ", setting.name, " is \"", *text, "\", but ",
                          setting.alias, ", its other name, is \"", *alias_text,
                          "\"; allowed: the same value; unset one"));
  config = other;
}

// A mistyped name would otherwise be a setting that does nothing.
void refuse_unknown_names() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    names.push_back(core::split(*entry, '=').front());
  for (const auto& [name, near] : config::unknown_variables(names))
    throw ConfigError(str("environment variable ", name, " is unknown",
                          near.empty() ? std::string() : str(", did you mean ", near, "?"),
                          "; allowed: ", core::join(config::known_variables()),
                          "; correct or unset it"));
}

}  // namespace

std::vector<std::string> config::known_variables() {
  std::vector<std::string> known(std::begin(kReadElsewhere), std::end(kReadElsewhere));
  for (const Setting& setting : kSettings) known.emplace_back(setting.name);
  return known;
}

std::vector<std::string> config::other_names() {
  std::vector<std::string> names;
  for (const Setting& setting : kSettings)
    if (setting.alias != nullptr) names.emplace_back(setting.alias);
  return names;
}

std::vector<config::UnknownVariable> config::unknown_variables(
    const std::vector<std::string>& names) {
  constexpr std::string_view prefix = "DRIVETRAIN_";
  const std::vector<std::string> known = known_variables();
  std::vector<std::string> tails;
  for (const std::string& each : known) tails.push_back(each.substr(prefix.size()));
  std::vector<UnknownVariable> unknown;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix) || std::ranges::find(known, name) != known.end()) continue;
    const std::string near = core::nearest(name.substr(prefix.size()), tails);
    unknown.push_back({name, near.empty() ? near : str(prefix, near)});
  }
  return unknown;
}

Config Config::from_environment() {
  refuse_unknown_names();
  Config config;
  for (const Setting& setting : kSettings) apply(setting, config);
  if (config.cpu && config.accelerator != "auto" && config.accelerator != "cpu")
    throw ConfigError(str("DRIVETRAIN_CPU asks for the CPU, but DRIVETRAIN_ACCELERATOR is \"",
                          config.accelerator, "\"; allowed: auto or cpu with it; unset one"));
  return config;
}

}  // namespace drivetrain
