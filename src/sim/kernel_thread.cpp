// SPDX-License-Identifier: Apache-2.0
#include "sim/kernel_thread.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <drivetrain/error.h>

#include <atomic>
#include <mutex>
#include <string>

#include "core/text.h"

#include <pthread.h>

namespace drivetrain::sim {
namespace {

std::atomic<bool> forked{false};

// CPU kernels size some results there and back, and warn of it.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("An output with one or more elements was resized") == std::string::npos)
      c10::WarningHandler::process(warning);
  }
};

}  // namespace

void enter_kernel_thread() {
  thread_local Warnings warnings;
  c10::WarningUtils::set_warning_handler(&warnings);
  thread_local const at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::GradMode::set_enabled(false);
  pthread_setname_np(pthread_self(), "sim-stream");
}

void refuse_in_child(const char* what) {
  if (forked)
    throw HardwareError(
        core::str("sim: ", what,
                  " in a child of fork; allowed: use in the process that loaded the "
                  "devices; start a program (exec) in the child instead"));
}

bool in_child() { return forked; }

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forked = true; }); });
}

}  // namespace drivetrain::sim
