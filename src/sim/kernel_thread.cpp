// SPDX-License-Identifier: Apache-2.0
#include "sim/kernel_thread.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <drivetrain/error.h>

#include <atomic>
#include <mutex>

#include "core/text.h"

#include <pthread.h>

namespace drivetrain::sim {
namespace {

std::atomic<bool> forked{false};

}  // namespace

void enter_kernel_thread() {
  thread_local const at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::GradMode::set_enabled(false);
  pthread_setname_np(pthread_self(), "sim-stream");
}

void refuse_in_child(const char* what) {
  if (forked)
    throw HardwareError(core::str("sim: ", what,
                                  " in a child of fork; allowed: use in the process that loaded the "
                                  "devices; start a program (exec) in the child instead"));
}

bool in_child() { return forked; }

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forked = true; }); });
}

}  // namespace drivetrain::sim
