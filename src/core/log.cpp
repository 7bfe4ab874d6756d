// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <string>
#include <vector>

#include "core/environment.h"
#include "core/rank_label.h"
#include "core/text.h"

#include <unistd.h>

namespace drivetrain::core {
namespace {

const std::vector<std::string> kNames = {"debug", "info", "warning", "error", "off"};

LogLevel level_from_environment() {
  const auto name = environment("DRIVETRAIN_LOG_LEVEL");
  return name ? parse_log_level("environment variable DRIVETRAIN_LOG_LEVEL", *name)
              : LogLevel::warning;
}

}  // namespace

LogLevel parse_log_level(const std::string& what, const std::string& text) {
  return static_cast<LogLevel>(parse_choice(what, text, kNames));
}

void log(LogLevel level, std::string_view text) {
  static const LogLevel lowest = level_from_environment();
  if (level < lowest || level == LogLevel::off) return;
  // One write(2), so that lines of several threads and processes do not mix.
  const std::string line =
      str(rank_label(), "drivetrain ", kNames[static_cast<size_t>(level)], ": ", text, "\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace drivetrain::core
