// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <drivetrain/error.h>
#include <drivetrain_sim/sim.h>
#include <torch/library.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>

#include "core/text.h"
#include "sim/accelerator.h"
#include "sim/device.h"
#include "sim/guard.h"
#include "sim/kernel_thread.h"
#include "sim/memory.h"
#include "sim/operation.h"
#include "sim/settings.h"
#include "sim/tensors.h"

namespace drivetrain::sim {

using core::str;

namespace {

struct State {
  std::mutex mutex;
  bool loaded = false;
};

State& state() {
  static State instance;
  return instance;
}

void refuse_other_backend() {
  if (!c10::is_privateuse1_backend_registered()) return;
  throw HardwareError(str("sim: load() found the PrivateUse1 backend \"",
                          c10::get_privateuse1_backend(),
                          "\"; allowed: one such backend in a process; load only one"));
}

// Kernels, as TORCH_LIBRARY_IMPL would, but not before they are asked for.
void register_operations() {
  const auto library = [](const char* space, c10::DispatchKey key) -> torch::Library& {
    // Never destroyed: that would take the kernels away.
    static auto* const libraries = new std::deque<torch::Library>;
    return libraries->emplace_back(torch::Library::IMPL, space, key, __FILE__, __LINE__);
  };
  library("_", c10::DispatchKey::PrivateUse1)
      .fallback(torch::CppFunction::makeFromBoxedFunction<&run_operation>());
  torch::Library& aten = library("aten", c10::DispatchKey::PrivateUse1);
  register_tensors(aten);
  register_copies(aten);
  register_kernels(aten);
  // The CPU has kernels for these, and LibTorch else takes them apart.
  for (const char* name :
       {"native_layer_norm", "native_group_norm", "silu_backward", "mish_backward"})
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_operation>());
  // Copies resolve conjugate and negative views themselves; LibTorch would call them for that.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})
    library("aten", key).impl("_copy_from", torch::CppFunction::makeFallthrough());
  library("_", c10::DispatchKey::AutocastPrivateUse1)
      .fallback(torch::CppFunction::makeFallthrough());
  register_autocast(library("aten", c10::DispatchKey::AutocastPrivateUse1));
}

void refuse_other_settings(const Settings& wanted) {
  const Settings& present = settings();
  if (wanted.devices == present.devices && wanted.memory_bytes == present.memory_bytes &&
      wanted.bandwidth == present.bandwidth && wanted.protect == present.protect)
    return;
  throw ConfigError(str("sim: load() was called with settings that differ from those loaded (",
                        present.devices, " devices of ", present.memory_bytes,
                        " bytes); allowed: the same; load once, and let DRIVETRAIN_SIM_* unset "
                        "where the program gives settings"));
}

}  // namespace

void load(const Settings& wanted) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  check(wanted);
  if (state().loaded) return refuse_other_settings(wanted);
  refuse_other_backend();
  set_settings(wanted);
  c10::register_privateuse1_backend("sim");
  c10::SetAllocator(kType, device_allocator());
  c10::impl::registerDeviceGuard(kType, new_guard());
  at::RegisterPrivateUse1HooksInterface(new_hooks());
  register_operations();
  register_accelerator(SimAccelerator::row(), [](const AcceleratorFacts& facts) {
    return std::make_shared<SimAccelerator>(facts);
  });
  watch_forks();
  std::atexit(stop_all);
  state().loaded = true;
}

bool is_loaded() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().loaded;
}

void sleep(double milliseconds) {
  check_driver();
  Queue& queue = current_queue(current_device());
  const auto length = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(milliseconds));
  queue.enqueue("sleep", [&queue, length] { queue.nap_until(Clock::now() + length); });
}

}  // namespace drivetrain::sim

// What hardware/ looks for in a library that it loads by the environment. Settings that the program
// gave before stand.
extern "C" void drivetrain_load_plugin() {
  if (!drivetrain::sim::is_loaded()) drivetrain::sim::load();
}
