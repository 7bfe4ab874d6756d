// SPDX-License-Identifier: Apache-2.0
// Log lines on standard error, "[rank 3/8] drivetrain info: text". DRIVETRAIN_LOG_LEVEL sets the
// lowest level written: debug, info, warning (the default), error, off.
#pragma once

#include <string>
#include <string_view>

namespace drivetrain::core {

enum class LogLevel { debug, info, warning, error, off };

// Throws ConfigError, with `what` as the source, if it is none of the names.
LogLevel parse_log_level(const std::string& what, const std::string& text);

void log(LogLevel level, std::string_view text);
inline void log_debug(std::string_view text) { log(LogLevel::debug, text); }
inline void log_info(std::string_view text) { log(LogLevel::info, text); }
inline void log_warning(std::string_view text) { log(LogLevel::warning, text); }
inline void log_error(std::string_view text) { log(LogLevel::error, text); }

}  // namespace drivetrain::core
