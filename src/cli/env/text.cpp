// SPDX-License-Identifier: Apache-2.0
// The facts as a table for people.
#include <algorithm>
#include <utility>
#include <vector>

#include "cli/env/facts.h"
#include "core/sizes.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;
using Json = nlohmann::ordered_json;
using Rows = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kBytes = "_bytes";

// "shm_available_bytes" is "shm available"; names of variables stay.
std::string label(const std::string& key) {
  const bool is_key =
      std::none_of(key.begin(), key.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  if (!is_key) return key;
  std::string text = key.ends_with(kBytes) ? key.substr(0, key.size() - kBytes.size()) : key;
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string inline_text(const std::string& key, const Json& value);

std::string list_text(const Json& list) {
  std::vector<std::string> parts;
  for (const Json& one : list) parts.push_back(inline_text("", one));
  return parts.empty() ? "none" : core::join(parts);
}

std::string object_text(const Json& object) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : object.items())
    parts.push_back(str(label(key), " ", inline_text(key, value)));
  return parts.empty() ? "none" : core::join(parts);
}

std::string inline_text(const std::string& key, const Json& value) {
  if (value.is_null()) return "none";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer() && key.ends_with(kBytes))
    return core::format_bytes(value.get<int64_t>());
  if (value.is_number_float()) return str(value.get<double>());
  if (value.is_array()) return list_text(value);
  if (value.is_object()) return object_text(value);
  if (value.is_string())
    return value.get<std::string>().empty() ? "none" : value.get<std::string>();
  return value.dump();
}

bool holds_objects(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_object();
}

void add_rows(const Json& section, const std::string& indent, Rows& rows);

// A list of objects: a row each, under its first field; what is nested follows.
void add_object_of_list(const Json& object, const std::string& indent, Rows& rows) {
  std::string name;
  std::vector<std::string> parts;
  Json nested = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (holds_objects(value))
      nested[key] = value;
    else if (name.empty())
      name = inline_text(key, value);
    else if (!(value.is_array() && value.empty()) && value != "")
      parts.push_back(str(label(key), " ", inline_text(key, value)));
  }
  rows.emplace_back(indent + name, core::join(parts));
  add_rows(nested, indent + "  ", rows);
}

void add_rows(const Json& section, const std::string& indent, Rows& rows) {
  if (section.is_array()) {
    for (const Json& one : section) {
      if (one.is_object())
        add_object_of_list(one, indent, rows);
      else
        rows.emplace_back(indent + inline_text("", one), "");
    }
    return;
  }
  for (const auto& [key, value] : section.items()) {
    const bool opens = holds_objects(value) || (value.is_object() && value.size() > 2);
    if (!opens) {
      rows.emplace_back(indent + label(key), inline_text(key, value));
      continue;
    }
    rows.emplace_back(indent + label(key), "");
    add_rows(value, indent + "  ", rows);
  }
}

}  // namespace

std::string to_text(const Json& sections) {
  std::string text;
  for (const auto& [title, section] : sections.items()) {
    Rows rows;
    add_rows(section, "", rows);
    if (rows.empty()) rows.emplace_back("none", "");
    size_t width = 0;
    for (const auto& [name, value] : rows)
      if (!value.empty()) width = std::max(width, std::min<size_t>(name.size(), 32));
    text += str(text.empty() ? "" : "\n", label(title), "\n");
    for (const auto& [name, value] : rows) {
      const std::string gap(name.size() < width ? width - name.size() : 0, ' ');
      text += value.empty() ? str("  ", name, "\n") : str("  ", name, gap, "  ", value, "\n");
    }
  }
  return text;
}

}  // namespace drivetrain::cli
