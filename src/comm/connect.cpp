// SPDX-License-Identifier: Apache-2.0
#include "comm/connect.h"

#include <drivetrain/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

#include "core/text.h"

namespace drivetrain::comm {

using core::str;

namespace {

constexpr Milliseconds kLimit(10'000);
constexpr int kAttempts = 3;

// What became of an attempt on all ranks: "" if all are connected, else the first error.
std::string outcome_of_attempt(const StorePtr& store, int world_size, Milliseconds limit) {
  const auto keys = keys_of_ranks("outcome/", world_size);
  if (!wait_for_keys(store, keys, limit, [] {}))
    return "a rank did not say whether it is connected";
  for (const std::string& key : keys)
    if (const std::string said = text_at(store, key); said != "connected") return said;
  return "";
}

}  // namespace

std::unique_ptr<Transport> connect_all(const MeetingPlace& place, const ProcessFacts& facts,
                                       Milliseconds timeout, const MakeTransport& make) {
  const Milliseconds limit = std::min(timeout, kLimit);
  for (int attempt = 1;; ++attempt) {
    const StorePtr store =
        c10::make_intrusive<c10d::PrefixStore>(str("gloo/", attempt), place.store);
    std::unique_ptr<Transport> transport;
    std::string outcome = "connected";
    try {
      transport = make(store, limit);
    } catch (const std::exception& error) {
      outcome = core::split(error.what(), '\n').front();
    }
    put(store, str("outcome/", facts.rank), outcome);
    const std::string failure = outcome_of_attempt(store, facts.world_size, 3 * limit);
    if (failure.empty()) return transport;
    if (attempt == kAttempts)
      throw CommError(str("rank ", facts.rank, " cannot connect to the others at ", place.name,
                          " in ", kAttempts, " attempts: ", failure,
                          "; allowed: ranks that reach each other; look at the network, or name ",
                          "an interface in GLOO_SOCKET_IFNAME"));
  }
}

}  // namespace drivetrain::comm
