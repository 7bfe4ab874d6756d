// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <drivetrain/error.h>

#include <array>
#include <string>

#include "core/environment.h"
#include "core/rank_label.h"
#include "core/text.h"

#include <unistd.h>

namespace drivetrain::core {
namespace {

const std::array<std::string, 5> kNames = {"debug", "info", "warning", "error", "off"};

LogLevel level_from_environment() {
  const std::string name = environment("DRIVETRAIN_LOG_LEVEL").value_or("warning");
  for (size_t i = 0; i < kNames.size(); ++i)
    if (lower(name) == kNames[i]) return static_cast<LogLevel>(i);
  throw ConfigError(str("environment variable DRIVETRAIN_LOG_LEVEL is \"", name,
                        "\"; allowed: ", join(kNames), "; correct or unset it"));
}

}  // namespace

void log(LogLevel level, std::string_view text) {
  static const LogLevel lowest = level_from_environment();
  if (level < lowest || level == LogLevel::off) return;
  // One write(2), so that lines of several threads and processes do not mix.
  const std::string line =
      str(rank_label(), "drivetrain ", kNames[static_cast<size_t>(level)], ": ", text, "\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace drivetrain::core
