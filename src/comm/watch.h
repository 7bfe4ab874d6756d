// SPDX-License-Identifier: Apache-2.0
// What one rank knows of the others. A small thread says twice a second, in the store that the
// ranks met at, that this rank is alive and where it is; while somebody waits for the others, it
// reads what they say. Nothing is read while nobody waits.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "comm/record.h"

namespace drivetrain::comm {

// Where a rank is: the number of its last collective, and in words.
struct Position {
  uint64_t number = 0;
  std::string text;  // "in all_reduce #3 of float32[2]", "computing since all_reduce #3 ..."
};

// How a rank's membership ended. stopped: it failed because another rank did.
enum class Ending { none, left, stopped, failed };

class Watch {
 public:
  // `where` is called from the thread. `store_host` says who serves the store, for messages.
  Watch(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
        std::string store_host, std::function<Position()> where);

  // Blocks for 2 s at most, even if the store does not answer.
  ~Watch();

  // Tells the others, at once. Blocks for 1 s at most.
  void end(Ending ending, std::string_view reason);

  // Reads the others. Blocks for `limit` at most; what they said may be old then.
  void refresh(Milliseconds limit);

  // Why a collective cannot complete, as of the last refresh; none if there is no reason to give up
  // yet. A rank is gone if it has been silent for 2.5 s, or 1.5 s if a connection broke.
  std::optional<std::string> verdict(uint64_t number, bool connection_broke) const;

  // "rank 0 is in ...; rank 2 is computing ..." but for this rank.
  std::string report() const;

  // Why a rank still waits at `mine`: "late: rank 1 and rank 3", which have not started that
  // collective; else "in another call: rank 2", which counts it as this one; else "no rank is
  // late".
  std::string cause(const Position& mine) const;

  // True if every other rank has left, failed or is silent.
  bool is_alone() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // The thread's too: it outlives this if the store hangs.
  std::thread thread_;
};

}  // namespace drivetrain::comm
