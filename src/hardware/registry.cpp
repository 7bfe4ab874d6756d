// SPDX-License-Identifier: Apache-2.0
// Which backends there are, which of them is in force, and why.
#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>

#include <algorithm>
#include <mutex>

#include "core/environment.h"
#include "core/log.h"
#include "core/text.h"
#include "hardware/passed_over.h"
#include "hardware/plugin.h"
#include "hardware/table.h"

namespace drivetrain {

using core::str;
using hardware::Backend;

namespace {

constexpr const char* kVariable = "DRIVETRAIN_ACCELERATOR";

struct Scope {
  uint64_t id;
  std::shared_ptr<BaseAccelerator> accelerator;
};

struct Registry {
  std::mutex mutex;  // guards all below; never held while a backend is asked something
  std::vector<Backend> backends = hardware::builtin_backends();
  std::shared_ptr<BaseAccelerator> chosen;
  bool is_explicit = false;
  std::vector<Scope> scopes;
  uint64_t last_scope = 0;
  std::vector<ProbeResult> report;
};

Registry& registry() {
  // Never destroyed: threads may ask until the very end of the process.
  static auto* instance = new Registry;
  return *instance;
}

std::vector<Backend> backends() {
  hardware::load_plugins();
  const std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().backends;
}

std::shared_ptr<BaseAccelerator> make(const Backend& backend) {
  return backend.make ? backend.make(backend.facts)
                      : std::make_shared<DeviceAccelerator>(backend.facts);
}

// "what; allowed: cuda, npu, cpu; did you mean "cuda"?".
std::string unknown_name(const std::string& what, const std::string& name) {
  const std::vector<std::string> names = registered_accelerators();
  const std::string near = core::nearest(core::lower(name), names);
  return str(what, " \"", name, "\" is not registered; allowed: ", core::join(names), "; ",
             near.empty() ? "use one of these, or add yours by register_accelerator()"
                          : str("did you mean \"", near, "\"?"));
}

std::shared_ptr<BaseAccelerator> find(const std::string& name) {
  for (const Backend& backend : backends())
    if (backend.facts.name == name) return make(backend);
  return nullptr;
}

// The contract forbids it to throw; a backend that does all the same must not end detection.
std::string why_unavailable(const BaseAccelerator& accelerator) {
  try {
    return accelerator.why_unavailable();
  } catch (const std::exception& error) {
    return str("asking it failed: ", error.what());
  }
}

// **Throws HardwareError if** no device of `accelerator` can be used.
void check_available(const BaseAccelerator& accelerator, const std::string& who_asked) {
  const std::string reason = why_unavailable(accelerator);
  if (reason.empty()) return;
  throw HardwareError(
      str("accelerator \"", accelerator.name(), "\"", who_asked, " is not available: ", reason,
          "; allowed: one with a device, of the registered ", core::join(registered_accelerators()),
          "; choose another, or auto_set_accelerator()"));
}

std::shared_ptr<BaseAccelerator> make_available(const std::string& name,
                                                const std::string& who_asked = "") {
  auto accelerator = make_accelerator(name);
  check_available(*accelerator, who_asked);
  return accelerator;
}

struct Detection {
  std::shared_ptr<BaseAccelerator> chosen;
  std::vector<ProbeResult> report;
  std::vector<hardware::PassedOver> passed_over;
};

std::string count_of(const BaseAccelerator& accelerator) {
  const int count = accelerator.device_count();
  return str(count, count == 1 ? " device" : " devices");
}

// Asks every backend; takes the one called `wanted`, or the first available one if that is empty.
Detection probe(const std::string& wanted) {
  Detection detection;
  for (const Backend& backend : backends()) {
    const std::string& name = backend.facts.name;
    auto candidate = make(backend);
    std::string reason = why_unavailable(*candidate);
    const bool available = reason.empty();
    const bool chosen = available && !detection.chosen && (wanted.empty() || wanted == name);
    if (available) reason = count_of(*candidate);
    if (chosen)
      reason += wanted.empty() ? ", first in order" : str(", named by ", kVariable);
    else if (available)
      reason += wanted.empty() ? str(", but ", detection.chosen->name(), " comes first")
                               : str(", but ", kVariable, " names ", wanted);
    if (!available && !detection.chosen && wanted.empty())
      detection.passed_over.push_back({backend.facts, reason});
    detection.report.push_back({name, chosen, reason});
    if (chosen) detection.chosen = std::move(candidate);
  }
  return detection;
}

Detection detect() {
  const std::string wanted = core::environment(kVariable).value_or("");
  if (!wanted.empty()) {
    const auto accelerator = find(wanted);
    if (!accelerator) throw ConfigError(unknown_name(str(kVariable, ":"), wanted));
    check_available(*accelerator, str(", named by ", kVariable, ","));
  }
  Detection detection = probe(wanted);
  if (!detection.chosen)
    throw HardwareError(str("no accelerator is available; allowed: one with a device, of ",
                            core::join(registered_accelerators()), "; register one"));
  return detection;
}

// Detects, records the report, and stores the result, unless an explicit choice is in force or,
// without `again`, another thread has been faster.
void detect_and_store(bool again) {
  Detection detection = detect();
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.report = std::move(detection.report);
  if (r.is_explicit || (r.chosen && !again)) return;
  if (!r.chosen || r.chosen->name() != detection.chosen->name())
    core::log_info("accelerator " + detection.chosen->name() + " (detected)");
  hardware::warn_of_passed_over(detection.passed_over, detection.chosen->name());
  r.chosen = std::move(detection.chosen);
}

std::shared_ptr<BaseAccelerator> in_force() {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  return r.scopes.empty() ? r.chosen : r.scopes.back().accelerator;
}

uint64_t push_scope(std::shared_ptr<BaseAccelerator> accelerator) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.scopes.push_back({++r.last_scope, std::move(accelerator)});
  return r.last_scope;
}

void refuse_null(const std::shared_ptr<BaseAccelerator>& accelerator, const char* call) {
  if (!accelerator)
    throw HardwareError(str(call,
                            " was given no accelerator (a null pointer); allowed: a name or "
                            "an instance; pass one of ",
                            core::join(registered_accelerators())));
}

}  // namespace

void register_accelerator(AcceleratorFacts facts, AcceleratorFactory make) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  for (const Backend& backend : r.backends)
    if (backend.facts.name == facts.name)
      throw HardwareError(str("accelerator \"", facts.name,
                              "\" is registered already; allowed: each name once; choose another"));
  const auto place = std::find_if(r.backends.begin(), r.backends.end(), [&](const Backend& other) {
    return other.facts.priority > facts.priority;
  });
  r.backends.insert(place, {std::move(facts), std::move(make)});
}

std::vector<std::string> registered_accelerators() {
  std::vector<std::string> names;
  for (const Backend& backend : backends()) names.push_back(backend.facts.name);
  return names;
}

std::shared_ptr<BaseAccelerator> make_accelerator(const std::string& name) {
  if (auto accelerator = find(name)) return accelerator;
  throw HardwareError(unknown_name("accelerator", name));
}

std::shared_ptr<BaseAccelerator> get_accelerator() {
  while (true) {
    if (auto accelerator = in_force()) return accelerator;
    detect_and_store(/*again=*/false);
  }
}

std::shared_ptr<BaseAccelerator> accelerator_of(c10::DeviceType type) {
  auto current = get_accelerator();
  if (current->device_type() == type) return current;
  for (const Backend& backend : backends()) {
    if (backend.facts.type != type) continue;
    auto candidate = make(backend);
    if (candidate->is_available()) return candidate;
  }
  throw HardwareError(str("tensors on ", c10::DeviceTypeName(type, /*lower_case=*/true),
                          " belong to no registered accelerator that is available; allowed: ",
                          core::join(registered_accelerators()),
                          "; add yours by register_accelerator()"));
}

void set_accelerator(const std::string& name) { set_accelerator(make_available(name)); }

void set_accelerator(std::shared_ptr<BaseAccelerator> accelerator) {
  refuse_null(accelerator, "set_accelerator");
  check_available(*accelerator, "");
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.chosen = std::move(accelerator);
  r.is_explicit = true;
}

std::shared_ptr<BaseAccelerator> auto_set_accelerator() {
  detect_and_store(/*again=*/true);
  return get_accelerator();
}

void clear_accelerator() {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.chosen.reset();
  r.is_explicit = false;
  r.report.clear();
}

std::vector<ProbeResult> probe_report() {
  Registry& r = registry();
  {
    const std::lock_guard<std::mutex> lock(r.mutex);
    if (!r.report.empty()) return r.report;
  }
  auto report = detect().report;
  const std::lock_guard<std::mutex> lock(r.mutex);
  return r.report = std::move(report);
}

ScopedAccelerator::ScopedAccelerator(const std::string& name)
    : id_(push_scope(make_available(name))) {}

ScopedAccelerator::ScopedAccelerator(std::shared_ptr<BaseAccelerator> accelerator) {
  refuse_null(accelerator, "ScopedAccelerator");
  check_available(*accelerator, "");
  id_ = push_scope(std::move(accelerator));
}

ScopedAccelerator::~ScopedAccelerator() {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  std::erase_if(r.scopes, [this](const Scope& scope) { return scope.id == id_; });
}

}  // namespace drivetrain
