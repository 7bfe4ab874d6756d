// SPDX-License-Identifier: Apache-2.0
// The process environment, read strictly: a value that does not parse is a ConfigError that names
// the variable, never a silent default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace drivetrain::core {

// The variable's value; empty counts as unset.
std::optional<std::string> environment(const std::string& name);

// Throws ConfigError if set but not a whole number in [minimum, maximum].
std::optional<int64_t> environment_int(const std::string& name, int64_t minimum, int64_t maximum);

// y yes t true on 1, or n no f false off 0, in any case. Throws ConfigError otherwise.
std::optional<bool> environment_bool(const std::string& name);

// The parsers behind the above; `what` names the source in the error.
int64_t parse_int(const std::string& what, const std::string& text, int64_t minimum,
                  int64_t maximum);
double parse_double(const std::string& what, const std::string& text, double minimum,
                    double maximum);
bool parse_bool(const std::string& what, const std::string& text);

// Which of the names it is, in any case.
size_t parse_choice(const std::string& what, const std::string& text,
                    const std::vector<std::string>& names);

}  // namespace drivetrain::core
