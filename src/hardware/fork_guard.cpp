// SPDX-License-Identifier: Apache-2.0
#include "hardware/fork_guard.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace drivetrain::hardware {
namespace {

// A child copies its parent's value; the handler turns "in use" into "forked too late".
enum class State { unused, in_use, forked_too_late };
std::atomic<State> state{State::unused};

void mark_child() {
  if (state == State::in_use) state = State::forked_too_late;
}

}  // namespace

void note_device_use() {
  if (state != State::unused) return;
  static std::once_flag installed;
  std::call_once(installed, [] { pthread_atfork(nullptr, nullptr, mark_child); });
  State expected = State::unused;
  state.compare_exchange_strong(expected, State::in_use);
}

bool forked_after_device_use() noexcept { return state == State::forked_too_late; }

}  // namespace drivetrain::hardware
