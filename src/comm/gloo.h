// SPDX-License-Identifier: Apache-2.0
// The transport over TCP for CPU tensors: c10d's ProcessGroupGloo.
#pragma once

#include <string>

#include "comm/transport.h"

namespace c10d {
class Store;
}

namespace drivetrain::comm {

// Collective. Blocks. Connects to every other rank of `store`; `address` is this machine's own,
// that the others can reach.
std::unique_ptr<Transport> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int world_size, const std::string& address,
                                     Milliseconds limit);

}  // namespace drivetrain::comm
