// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace drivetrain::hardware {

// Once a process: loads the libraries of backends that the environment asks for, which register
// themselves. **Throws ConfigError if** one is asked for and cannot be loaded.
void load_plugins();

}  // namespace drivetrain::hardware
