// SPDX-License-Identifier: Apache-2.0
// How ranks become a world.
#pragma once

#include <drivetrain/comm.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace drivetrain::comm {

// Collective. Blocks. The world of the ranks that meet in `store`, which is theirs alone.
World join(const c10::intrusive_ptr<c10d::Store>& store, const ProcessFacts& facts,
           const Config& config);

}  // namespace drivetrain::comm
