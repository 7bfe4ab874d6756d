// SPDX-License-Identifier: Apache-2.0
// The error that unwinds the calling thread, for destructors: they cannot ask the language.
#pragma once

#include <optional>
#include <string>

namespace drivetrain::core {

// The message of the drivetrain::Error that the calling thread made last, while a copy of it
// exists.
std::optional<std::string> live_error();

}  // namespace drivetrain::core
