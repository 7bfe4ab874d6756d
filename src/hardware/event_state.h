// SPDX-License-Identifier: Apache-2.0
// What an Event does on one kind of backend.
#pragma once

#include <drivetrain/hardware.h>

#include <optional>

namespace drivetrain::detail {

struct EventState {
  virtual ~EventState() = default;
  virtual void record(std::optional<c10::Stream> stream) = 0;
  virtual void wait(std::optional<c10::Stream> stream) const = 0;
  virtual bool query() const = 0;
  virtual void synchronize() const = 0;
  virtual double elapsed_ms(const EventState& end) const = 0;
};

}  // namespace drivetrain::detail
