// SPDX-License-Identifier: Apache-2.0
#include "core/environment.h"

#include <drivetrain/error.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <set>

#include "core/text.h"

namespace drivetrain::core {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

int64_t parse_int(const std::string& what, const std::string& text, int64_t minimum,
                  int64_t maximum) {
  int64_t value = 0;
  const std::string trimmed = trim(text);
  const char* end = trimmed.data() + trimmed.size();
  const auto [stop, error] = std::from_chars(trimmed.data(), end, value);
  if (error != std::errc() || stop != end || trimmed.empty() || value < minimum || value > maximum)
    throw ConfigError(str(what, " is \"", text, "\"; allowed: a whole number from ", minimum,
                          " to ", maximum, "; correct or unset it"));
  return value;
}

double parse_double(const std::string& what, const std::string& text, double minimum,
                    double maximum) {
  const std::string trimmed = trim(text);
  char* stop = nullptr;
  const double value = std::strtod(trimmed.c_str(), &stop);
  const bool whole = !trimmed.empty() && stop == trimmed.c_str() + trimmed.size();
  if (!whole || !(value >= minimum && value <= maximum))
    throw ConfigError(str(what, " is \"", text, "\"; allowed: a number from ", minimum, " to ",
                          maximum, "; correct or unset it"));
  return value;
}

bool parse_bool(const std::string& what, const std::string& text) {
  static const std::set<std::string> yes = {"y", "yes", "t", "true", "on", "1"};
  static const std::set<std::string> no = {"n", "no", "f", "false", "off", "0"};
  const std::string word = lower(trim(text));
  if (yes.contains(word)) return true;
  if (no.contains(word)) return false;
  throw ConfigError(str(what, " is \"", text,
                        "\"; allowed: yes, true, on, 1, no, false, off, 0; correct or unset it"));
}

std::optional<int64_t> environment_int(const std::string& name, int64_t minimum, int64_t maximum) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  return parse_int("environment variable " + name, *text, minimum, maximum);
}

std::optional<bool> environment_bool(const std::string& name) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  return parse_bool("environment variable " + name, *text);
}

size_t parse_choice(const std::string& what, const std::string& text,
                    const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), lower(trim(text)));
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  throw ConfigError(
      str(what, " is \"", text, "\"; allowed: ", join(names), "; correct or unset it"));
}

}  // namespace drivetrain::core
