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
#include "core/log.h"
#include "core/sizes.h"
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
    {"DRIVETRAIN_MIXED_PRECISION", "ACCELERATE_MIXED_PRECISION",
     [](Config& config, const std::string& what, const std::string& text) {
       constexpr MixedPrecision kinds[] = {MixedPrecision::no, MixedPrecision::fp16,
                                           MixedPrecision::bf16};
       config.mixed_precision = kinds[core::parse_choice(what, text, {"no", "fp16", "bf16"})];
     }},
    {"DRIVETRAIN_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
     [](Config& config, const std::string& what, const std::string& text) {
       config.gradient_accumulation_steps = core::parse_int(what, text, 1, 1 << 20);
     }},
};

// Read by other rooms, maybe late or never, so a wrong value is told here: `check` throws.
struct ReadElsewhere {
  const char* name;
  void (*check)(const std::string& what, const std::string& text);
};

constexpr ReadElsewhere kReadElsewhere[] = {
    {"DRIVETRAIN_LOG_LEVEL",
     [](const std::string& what, const std::string& text) { core::parse_log_level(what, text); }},
    {"DRIVETRAIN_CPU_CAPABILITY",
     [](const std::string& what, const std::string& text) {
       core::parse_choice(what, text, {"scalar", "avx2", "avx512"});
     }},
    {"DRIVETRAIN_SIM_DEVICES",
     [](const std::string& what, const std::string& text) { core::parse_int(what, text, 1, 64); }},
    {"DRIVETRAIN_SIM_MEMORY",
     [](const std::string& what, const std::string& text) { core::parse_bytes(what, text); }},
    {"DRIVETRAIN_SIM_BANDWIDTH",
     [](const std::string& what, const std::string& text) { core::parse_bytes(what, text); }},
    {"DRIVETRAIN_SIM_PROTECT",
     [](const std::string& what, const std::string& text) { core::parse_bool(what, text); }},
};

// Set by the launcher for its processes, not by people.
constexpr const char* kOfTheLauncher[] = {"DRIVETRAIN_STORE_FD", "DRIVETRAIN_ERROR_FILE",
                                          "DRIVETRAIN_TERMINAL_COLUMNS"};

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

std::vector<std::string> settable() {
  std::vector<std::string> names;
  for (const Setting& setting : kSettings) names.emplace_back(setting.name);
  for (const ReadElsewhere& other : kReadElsewhere) names.emplace_back(other.name);
  return names;
}

// A mistyped name would otherwise be a setting that does nothing.
void refuse_unknown_names() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    names.push_back(core::split(*entry, '=').front());
  for (const auto& [name, near] : config::unknown_variables(names))
    throw ConfigError(str("environment variable ", name, " is unknown",
                          near.empty() ? std::string() : str(", did you mean ", near, "?"),
                          "; allowed: ", core::join(settable()), "; correct or unset it"));
}

}  // namespace

std::vector<std::string> config::known_variables() {
  std::vector<std::string> known = settable();
  known.insert(known.end(), std::begin(kOfTheLauncher), std::end(kOfTheLauncher));
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
  for (const auto& [name, check] : kReadElsewhere)
    if (const auto text = core::environment(name)) check(str("environment variable ", name), *text);
  if (config.cpu && config.accelerator != "auto" && config.accelerator != "cpu")
    throw ConfigError(str("DRIVETRAIN_CPU asks for the CPU, but DRIVETRAIN_ACCELERATOR is \"",
                          config.accelerator, "\"; allowed: auto or cpu with it; unset one"));
  return config;
}

}  // namespace drivetrain
