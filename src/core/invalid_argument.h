// SPDX-License-Identifier: Apache-2.0
// What a call that is wrong in itself is told.
#pragma once

#include <stdexcept>
#include <string_view>

#include "core/rank_label.h"
#include "core/text.h"

namespace drivetrain::core {

// Throws std::invalid_argument in the shape of every message: "[rank r/w] room: message".
[[noreturn]] inline void refuse(std::string_view room, std::string_view message) {
  throw std::invalid_argument(str(rank_label(), room, ": ", message));
}

}  // namespace drivetrain::core
