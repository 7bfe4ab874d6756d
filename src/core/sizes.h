// SPDX-License-Identifier: Apache-2.0
// Sizes in bytes with units.
#pragma once

#include <cstdint>
#include <string>

namespace drivetrain::core {

// "24GiB", "1.5GB", "512KiB", "100MB", "7B": binary with an i, decimal without; a unit is required.
// Throws ConfigError that names `what` otherwise.
int64_t parse_bytes(const std::string& what, const std::string& text);

// "1.5 GiB", "512 B".
std::string format_bytes(int64_t bytes);

}  // namespace drivetrain::core
