// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/backends.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/text.h"
#include "hardware/kernels/builtin.h"

namespace drivetrain::kernels {

using core::str;

namespace {

std::string what_is(const std::string& operation, const std::string& backend,
                    const std::string& name) {
  return str("kernel \"", name, "\" for ", operation, " on ", backend);
}

bool is_for(const Kernel& kernel, const std::string& operation, const std::string& backend) {
  return kernel.operation == operation && kernel.backend == backend;
}

KernelVerdict judge(const Kernel& kernel) {
  KernelVerdict verdict;
  verdict.name = kernel.name;
  verdict.priority = kernel.priority;
  if (kernel.why_unavailable) verdict.reason = kernel.why_unavailable();
  if (!verdict.reason.empty()) {
    verdict.reason.insert(0, "not available: ");
    return verdict;
  }
  if (kernel.why_incompatible) verdict.reason = kernel.why_incompatible();
  verdict.usable = verdict.reason.empty();
  if (!verdict.usable) verdict.reason.insert(0, "not compatible: ");
  return verdict;
}

// Marks the first usable one.
std::vector<KernelVerdict> judge_all(const std::vector<std::shared_ptr<const Kernel>>& candidates) {
  std::vector<KernelVerdict> verdicts;
  std::string best;
  for (const auto& kernel : candidates) {
    verdicts.push_back(judge(*kernel));
    KernelVerdict& verdict = verdicts.back();
    if (!verdict.usable) continue;
    verdict.chosen = best.empty();
    verdict.reason =
        verdict.chosen ? "highest priority" : str("usable, but ", best, " comes first");
    if (verdict.chosen) best = kernel->name;
  }
  return verdicts;
}

std::string describe_all(const std::vector<KernelVerdict>& verdicts) {
  std::vector<std::string> lines;
  for (const KernelVerdict& verdict : verdicts) lines.push_back(describe(verdict));
  return core::join(lines, ", ");
}

}  // namespace

std::string describe(const KernelVerdict& verdict) {
  return str(verdict.name, " (priority ", verdict.priority, "): ", verdict.reason);
}

void KernelRegistry::add(Kernel kernel) {
  const std::string what = what_is(kernel.operation, kernel.backend, kernel.name);
  if (kernel.operation.empty() || kernel.backend.empty() || kernel.name.empty() ||
      !kernel.run.has_value())
    throw HardwareError(str(what,
                            kernel.run.has_value() ? " has an empty name" : " has no function",
                            "; allowed: operation, backend, name and run filled in"));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Shared& other : kernels_)
    if (is_for(*other, kernel.operation, kernel.backend) && other->name == kernel.name)
      throw HardwareError(str(what,
                              " is registered already; allowed: each name once; choose "
                              "another, or remove that one first"));
  const auto place = std::find_if(kernels_.begin(), kernels_.end(), [&](const Shared& other) {
    return other->priority < kernel.priority;
  });
  kernels_.insert(place, std::make_shared<const Kernel>(std::move(kernel)));
}

void KernelRegistry::remove(const std::string& operation, const std::string& backend,
                            const std::string& name) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto removed = std::erase_if(kernels_, [&](const Shared& kernel) {
      return is_for(*kernel, operation, backend) && kernel->name == name;
    });
    if (removed > 0) return;
  }
  throw HardwareError(str(what_is(operation, backend, name),
                          " is not registered; allowed: one that add was given"));
}

bool KernelRegistry::has(const std::string& operation, const std::string& backend) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(kernels_.begin(), kernels_.end(),
                     [&](const Shared& kernel) { return is_for(*kernel, operation, backend); });
}

std::vector<KernelVerdict> KernelRegistry::report(const std::string& operation,
                                                  const std::string& backend) const {
  return judge_all(candidates(operation, backend));
}

std::vector<std::shared_ptr<const Kernel>> KernelRegistry::candidates(
    const std::string& operation, const std::string& backend) const {
  std::vector<Shared> found;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::copy_if(kernels_.begin(), kernels_.end(), std::back_inserter(found),
               [&](const Shared& kernel) { return is_for(*kernel, operation, backend); });
  return found;
}

std::shared_ptr<const Kernel> KernelRegistry::choose(const std::string& operation,
                                                     const std::string& backend,
                                                     const std::string& name) const {
  const std::vector<Shared> all = candidates(operation, backend);
  if (all.empty()) throw_unknown(operation, backend);
  for (const Shared& kernel : all)
    if ((name.empty() || kernel->name == name) && judge(*kernel).usable) return kernel;
  throw HardwareError(str(name.empty() ? str("no kernel for ", operation, " on ", backend, " can")
                                       : str(what_is(operation, backend, name), " cannot"),
                          " be used; found: ", describe_all(judge_all(all)),
                          "; allowed: one that is available and compatible; use another, or "
                          "register one"));
}

void KernelRegistry::throw_unknown(const std::string& operation, const std::string& backend) const {
  std::set<std::string> pairs, operations;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Shared& kernel : kernels_) {
      pairs.insert(str(kernel->operation, " on ", kernel->backend));
      operations.insert(kernel->operation);
    }
  }
  const std::vector<std::string> known(pairs.begin(), pairs.end());
  const std::vector<std::string> names(operations.begin(), operations.end());
  const std::string near = operations.contains(operation) ? "" : core::nearest(operation, names);
  throw HardwareError(str("there is no kernel for ", operation, " on ", backend,
                          "; allowed: ", known.empty() ? "none is registered" : core::join(known),
                          near.empty() ? "; register one" : str("; did you mean ", near, "?")));
}

void KernelRegistry::throw_wrong_type(const Kernel& kernel) {
  throw HardwareError(str(what_is(kernel.operation, kernel.backend, kernel.name),
                          " was registered with a function of another type than it was loaded as; "
                          "allowed: the operation's type; correct its registration"));
}

KernelRegistry& kernel_registry() {
  // Never destroyed: threads may step until the very end of the process.
  static auto* const registry = [] {
    auto* made = new KernelRegistry;
    add_builtin_kernels(*made);
    return made;
  }();
  return *registry;
}

}  // namespace drivetrain::kernels
