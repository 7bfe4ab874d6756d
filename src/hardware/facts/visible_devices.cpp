// SPDX-License-Identifier: Apache-2.0
#include "hardware/facts/visible_devices.h"

#include <drivetrain/error.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "core/text.h"

namespace drivetrain::hardware {

using core::str;

namespace {

bool only(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

bool is_number(std::string_view text) { return text.size() < 10 && only(text, "0123456789"); }

// Hexadecimal groups, or the beginning of them; NVIDIA's have dashes, AMD's are 16 digits.
bool is_uuid(std::string_view text) { return only(text, "0123456789abcdefABCDEF-"); }

bool is_mig(std::string_view text) {
  if (is_uuid(text)) return true;
  const std::vector<std::string> parts = core::split(text, '/');
  return parts.size() == 3 && parts[0].starts_with("GPU-") && is_uuid(parts[0].substr(4)) &&
         is_number(parts[1]) && is_number(parts[2]);
}

std::optional<DeviceForm> form_of(std::string_view text) {
  if (is_number(text)) return DeviceForm::index;
  if (text.starts_with("GPU-") && is_uuid(text.substr(4))) return DeviceForm::uuid;
  if (text.starts_with("MIG-") && is_mig(text.substr(4))) return DeviceForm::mig;
  const size_t dot = text.find('.');
  if (dot != std::string_view::npos && is_number(text.substr(0, dot)) &&
      is_number(text.substr(dot + 1)))
    return DeviceForm::tile;
  return std::nullopt;
}

}  // namespace

std::vector<VisibleDevice> parse_visible_devices(std::string_view variable,
                                                 std::string_view value) {
  std::vector<VisibleDevice> devices;
  const std::string whole = core::trim(value);
  if (whole.empty() || whole == "NoDevFiles") return devices;
  for (const std::string& part : core::split(whole, ',')) {
    const std::string text = core::trim(part);
    if (text.size() > 1 && text[0] == '-' && is_number(text.substr(1))) return devices;
    const auto form = form_of(text);
    if (!form)
      throw ConfigError(str(variable, " is \"", value, "\": \"", text,
                            "\" names no device; allowed: numbers, GPU-... and MIG-..., with "
                            "commas between; correct or unset it"));
    const bool again = std::any_of(devices.begin(), devices.end(),
                                   [&](const VisibleDevice& one) { return one.text == text; });
    if (again)
      throw ConfigError(str(variable, " is \"", value, "\": it names ", text,
                            " twice; allowed: each device once; correct it"));
    devices.push_back({*form, text});
  }
  return devices;
}

}  // namespace drivetrain::hardware
