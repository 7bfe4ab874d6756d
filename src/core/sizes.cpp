// SPDX-License-Identifier: Apache-2.0
#include "core/sizes.h"

#include <drivetrain/error.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "core/text.h"

namespace drivetrain::core {
namespace {

constexpr std::array<std::pair<const char*, double>, 9> kUnits = {{{"KiB", 1024.0},
                                                                   {"MiB", 1048576.0},
                                                                   {"GiB", 1073741824.0},
                                                                   {"TiB", 1099511627776.0},
                                                                   {"KB", 1e3},
                                                                   {"MB", 1e6},
                                                                   {"GB", 1e9},
                                                                   {"TB", 1e12},
                                                                   {"B", 1.0}}};

}  // namespace

int64_t parse_bytes(const std::string& what, const std::string& text) {
  const std::string trimmed = trim(text);
  const size_t digits = trimmed.find_first_not_of("0123456789.");
  if (digits != 0 && digits != std::string::npos) {
    char* stop = nullptr;
    const double number = std::strtod(trimmed.c_str(), &stop);
    const std::string unit = trim(trimmed.substr(digits));
    const bool is_number = stop == trimmed.c_str() + digits;
    for (const auto& [name, factor] : kUnits)
      if (is_number && unit == name && number * factor < 9.2e18)
        return static_cast<int64_t>(std::llround(number * factor));
  }
  throw ConfigError(str(what, " is \"", text,
                        "\"; allowed: a number with a unit, as 24GiB, 1.5GB, 512KiB; correct it"));
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array<const char*, 5> names = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024.0 && unit + 1 < names.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, names[unit]);
  return out.data();
}

}  // namespace drivetrain::core
