// SPDX-License-Identifier: Apache-2.0
// Debug mode: the ranks show each other, in the store, which collective they are about to run.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace drivetrain::comm {

class Agreement {
 public:
  // `number` counts the agreements of one world from 1, on every rank alike.
  Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, uint64_t number);

  void propose(const std::string& signature);

  // True once every rank has proposed. Does not block.
  bool is_complete();

  // "rank 0 and rank 2: X; rank 1: Y" where the proposals differ, the same text on every rank.
  std::optional<std::string> mismatch();

 private:
  std::string key(uint64_t number, int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  uint64_t number_;
  std::vector<std::string> keys_;  // One a rank.
};

}  // namespace drivetrain::comm
