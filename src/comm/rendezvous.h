// SPDX-License-Identifier: Apache-2.0
// How ranks become a world: they meet in a store, call the roll, and connect.
#pragma once

#include <drivetrain/comm.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

namespace drivetrain::comm {

struct MeetingPlace {
  c10::intrusive_ptr<c10d::Store> store;  // Of these ranks alone.
  std::string name = "the store of this process";
  bool is_served_here = false;
};

// Collective. Blocks. Throws CommError if a rank does not come in time, comes twice, or has another
// world size.
World join(const MeetingPlace& place, const ProcessFacts& facts, const Config& config);

}  // namespace drivetrain::comm
