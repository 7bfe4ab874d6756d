// SPDX-License-Identifier: Apache-2.0
// The address of this machine that the other ranks can reach.
#pragma once

#include <string>

namespace drivetrain::comm {

// This machine's own address on the way to `main_address`; loopback only where rank 0 is at a
// loopback address itself, or `is_one_machine`. Throws CommError if there is none.
std::string own_address(const std::string& main_address, int main_port, bool is_one_machine);

// The port that a listening socket is bound to. Throws ConfigError if the descriptor is no
// listening socket.
int listening_port(int descriptor);

}  // namespace drivetrain::comm
