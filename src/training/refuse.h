// SPDX-License-Identifier: Apache-2.0
// What a wrong call of the training room is told.
#pragma once

#include <string_view>

#include "core/invalid_argument.h"

namespace drivetrain::training {

// Throws std::invalid_argument, with the rank and the room before the message.
[[noreturn]] inline void refuse(std::string_view message) { core::refuse("training", message); }

}  // namespace drivetrain::training
