// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/cpu_level.h"

#include <vector>

#include "core/environment.h"
#include "core/text.h"

namespace drivetrain::kernels {

using core::str;

namespace {

constexpr const char* kVariable = "DRIVETRAIN_CPU_CAPABILITY";

#if defined(__x86_64__)
// The compiler's run-time library asks the processor, and whether the kernel saves the registers.
std::vector<std::string> missing_features(CpuLevel level) {
  std::vector<std::string> missing;
  if (level == CpuLevel::avx2 && !__builtin_cpu_supports("avx2")) missing.emplace_back("avx2");
  if (level == CpuLevel::avx2 && !__builtin_cpu_supports("f16c")) missing.emplace_back("f16c");
  if (level == CpuLevel::avx512 && !__builtin_cpu_supports("avx512f"))
    missing.emplace_back("avx512f");
  return missing;
}
#endif

}  // namespace

const char* name_of(CpuLevel level) {
  switch (level) {
    case CpuLevel::scalar:
      return "scalar";
    case CpuLevel::avx2:
      return "avx2";
    case CpuLevel::avx512:
      return "avx512";
  }
  return "";
}

std::string why_lacking(CpuLevel level) {
  if (level == CpuLevel::scalar) return "";
#if defined(__x86_64__)
  const auto missing = missing_features(level);
  return missing.empty() ? "" : str("the processor lacks ", core::join(missing));
#else
  return "not a processor of x86-64";
#endif
}

std::optional<CpuLevel> forced_cpu_level() {
  const auto text = core::environment(kVariable);
  if (!text) return std::nullopt;
  std::vector<std::string> names;
  for (const CpuLevel level : kCpuLevels) names.emplace_back(name_of(level));
  return kCpuLevels[core::parse_choice(str("environment variable ", kVariable), *text, names)];
}

const Loops& loops_of(CpuLevel level) {
#if defined(__x86_64__)
  if (level == CpuLevel::avx512) return kAvx512Loops;
  if (level == CpuLevel::avx2) return kAvx2Loops;
#else
  (void)level;
#endif
  return kScalarLoops;
}

}  // namespace drivetrain::kernels
