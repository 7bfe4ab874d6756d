// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/builtin.h"

#include <string>
#include <utility>

#include "core/text.h"
#include "hardware/kernels/adam.h"
#include "hardware/kernels/cpu_level.h"
#include "hardware/kernels/grad_norm.h"

namespace drivetrain::kernels {
namespace {

std::string why_not_forced(CpuLevel level) {
  const auto forced = forced_cpu_level();
  if (!forced || *forced == level) return "";
  return core::str("DRIVETRAIN_CPU_CAPABILITY asks for ", name_of(*forced));
}

Kernel for_cpu(const char* operation, CpuLevel level, std::any run) {
  return {.operation = operation,
          .name = name_of(level),
          .backend = "cpu",
          .priority = 10 * (static_cast<int>(level) + 1),
          .why_unavailable = [level] { return why_lacking(level); },
          .why_incompatible = [level] { return why_not_forced(level); },
          .run = std::move(run)};
}

}  // namespace

void add_builtin_kernels(KernelRegistry& registry) {
  for (const CpuLevel level : kCpuLevels) {
    const Loops& loops = loops_of(level);
    registry.add(for_cpu("adam", level, cpu_adam(loops)));
    registry.add(for_cpu("grad_norm", level, cpu_grad_norm(loops)));
  }
}

}  // namespace drivetrain::kernels
