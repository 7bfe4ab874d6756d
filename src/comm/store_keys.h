// SPDX-License-Identifier: Apache-2.0
// Texts under keys in the store that the ranks meet at.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/record.h"
#include "core/text.h"

namespace drivetrain::comm {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

inline std::string text_at(const StorePtr& store, const std::string& key) {
  const auto bytes = store->get(key);
  return {bytes.begin(), bytes.end()};
}

inline void put(const StorePtr& store, const std::string& key, const std::string& text) {
  store->set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

// prefix0, prefix1, ...
inline std::vector<std::string> keys_of_ranks(std::string_view prefix, int world_size) {
  std::vector<std::string> keys;
  for (int r = 0; r < world_size; ++r) keys.push_back(core::str(prefix, r));
  return keys;
}

// Looks ever less often until all keys are there; false if the limit passes. `between` may throw.
template <class Between>
bool wait_for_keys(const StorePtr& store, const std::vector<std::string>& keys, Milliseconds limit,
                   const Between& between) {
  const auto deadline = Clock::now() + limit;
  for (Milliseconds pause(1); !store->check(keys); pause = std::min(pause * 2, Milliseconds(50))) {
    between();
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace drivetrain::comm
