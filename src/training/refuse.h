// SPDX-License-Identifier: Apache-2.0
// What a wrong call of the training room is told.
#pragma once

#include <stdexcept>
#include <string_view>

#include "core/rank_label.h"
#include "core/text.h"

namespace drivetrain::training {

// Throws std::invalid_argument, with the rank and the room before the message.
[[noreturn]] inline void refuse(std::string_view message) {
  throw std::invalid_argument(core::str(core::rank_label(), "training: ", message));
}

}  // namespace drivetrain::training
