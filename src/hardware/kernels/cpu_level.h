// SPDX-License-Identifier: Apache-2.0
// Which instruction sets the loops over host memory may use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "hardware/kernels/ranges.h"

namespace drivetrain::kernels {

enum class CpuLevel : uint8_t { scalar, avx2, avx512 };
inline constexpr std::array kCpuLevels = {CpuLevel::scalar, CpuLevel::avx2, CpuLevel::avx512};

// "scalar", "avx2", "avx512".
const char* name_of(CpuLevel level);

// "" if this processor and its kernel can run `level`, or what is missing: "the processor lacks
// avx512f".
std::string why_lacking(CpuLevel level);

// DRIVETRAIN_CPU_CAPABILITY: the one level to use; none if unset. **Throws ConfigError if** it
// names no level.
std::optional<CpuLevel> forced_cpu_level();

// Requires: why_lacking(level) is "".
const Loops& loops_of(CpuLevel level);

}  // namespace drivetrain::kernels
