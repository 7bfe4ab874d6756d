// SPDX-License-Identifier: Apache-2.0
// All ranks connect, or all try again.
#pragma once

#include <functional>
#include <memory>

#include "comm/rendezvous.h"
#include "comm/store_keys.h"
#include "comm/transport.h"

namespace drivetrain::comm {

// Makes this rank's transport over a store of one attempt's own, or throws; may take `limit`.
using MakeTransport =
    std::function<std::unique_ptr<Transport>(const StorePtr& store, Milliseconds limit)>;

// Collective. Ranks that are all present connect within moments, but Gloo now and then loses a
// connection while it makes it, and then waits to the end. So an attempt has 10 s, or `timeout` if
// that is less; each rank says how its own went, and unless all are connected, all make another.
// Throws CommError after the third.
std::unique_ptr<Transport> connect_all(const MeetingPlace& place, const ProcessFacts& facts,
                                       Milliseconds timeout, const MakeTransport& make);

}  // namespace drivetrain::comm
