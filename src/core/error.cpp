// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/error.h>

#include <mutex>
#include <optional>

#include "core/environment.h"
#include "core/live_error.h"
#include "core/rank_label.h"
#include "core/text.h"

namespace drivetrain {

namespace core {
namespace {

std::mutex process_label_mutex;
std::optional<std::string> process_label;
thread_local std::optional<std::string> thread_label;

std::string make_label(int rank, int world_size) {
  return world_size > 1 ? str("[rank ", rank, "/", world_size, "] ") : std::string();
}

// The launcher's variables are read leniently: a label must never be the thing that fails.
std::string label_from_environment() {
  const std::string rank = environment("RANK").value_or("");
  const std::string world_size = environment("WORLD_SIZE").value_or("1");
  return rank.empty() || world_size == "1" ? std::string()
                                           : "[rank " + rank + "/" + world_size + "] ";
}

}  // namespace

void set_rank_label(int rank, int world_size) {
  thread_label = make_label(rank, world_size);
  std::lock_guard lock(process_label_mutex);
  if (!process_label) process_label = thread_label;
}

std::string rank_label() {
  if (thread_label) return *thread_label;
  std::lock_guard lock(process_label_mutex);
  return process_label ? *process_label : label_from_environment();
}

}  // namespace core

namespace core {
namespace {

// Expires with the last copy of the error, so that an old one is never taken for the present one.
thread_local std::weak_ptr<const std::string> thread_error;

}  // namespace

std::optional<std::string> live_error() {
  const auto message = thread_error.lock();
  return message ? std::optional(*message) : std::nullopt;
}

}  // namespace core

Error::Error(std::string_view room, std::string_view message)
    : std::runtime_error(core::str(core::rank_label(), room, ": ", message)),
      message_(std::make_shared<const std::string>(message)) {
  core::thread_error = message_;
}

}  // namespace drivetrain
