// SPDX-License-Identifier: Apache-2.0
// The listening socket of rank 0's store.
#pragma once

#include <string>

#include "cli/launch/fd.h"

namespace drivetrain::cli {

struct ListeningPort {
  Fd socket;  // bound and listening, closed on exec
  int port = 0;
};

// On `address` alone, or on every address of this machine where it is empty. Port 0: a free one.
// Since the socket is never closed before rank 0 has it, nobody else can take the port.
// Throws CommError if the port is in use or the address is not this machine's.
ListeningPort listen_on(const std::string& address, int port);

// Accepts and closes what waits on the socket: connections of ranks that are gone.
void drop_waiting_connections(const Fd& socket);

}  // namespace drivetrain::cli
