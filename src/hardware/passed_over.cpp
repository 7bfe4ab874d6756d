// SPDX-License-Identifier: Apache-2.0
#include "hardware/passed_over.h"

#include <drivetrain/error.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "core/log.h"
#include "core/text.h"
#include "hardware/facts/drivers.h"

namespace drivetrain::hardware {
namespace {

// The user wants it so: CUDA_VISIBLE_DEVICES="".
bool is_hidden(const AcceleratorFacts& facts) {
  const char* value =
      facts.visible_devices.empty() ? nullptr : std::getenv(facts.visible_devices.c_str());
  if (value == nullptr) return false;
  try {
    return parse_visible_devices(facts.visible_devices, value).empty();
  } catch (const ConfigError&) {
    return false;  // the backend's reason names it
  }
}

std::string evidence(const AcceleratorFacts& facts) {
  std::string found = evidence_of_device(facts.name);
  std::error_code error;  // not readable: not there, as far as this process goes
  if (found.empty() && !facts.driver_path.empty() && driver_path(facts.name).empty() &&
      std::filesystem::exists(facts.driver_path, error))
    found = facts.driver_path;
  return found;
}

}  // namespace

void warn_of_passed_over(const std::vector<PassedOver>& backends, const std::string& chosen) {
  static std::atomic<bool> warned{false};
  std::string text;
  for (const auto& [facts, reason] : backends) {
    const std::string found = is_hidden(facts) ? "" : evidence(facts);
    if (!found.empty())
      text += core::str(text.empty() ? "" : "; ", facts.name, " is not used although there is ",
                        found, ": ", reason);
  }
  if (text.empty() || warned.exchange(true)) return;
  core::log_warning(core::str(text, "; going on with ", chosen, "; DRIVETRAIN_ACCELERATOR=", chosen,
                              " says that it is meant so; see drivetrain doctor"));
}

}  // namespace drivetrain::hardware
