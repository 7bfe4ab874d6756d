// SPDX-License-Identifier: Apache-2.0
#include "comm/agreement.h"

#include <algorithm>
#include <utility>

#include "core/text.h"

namespace drivetrain::comm {

using core::str;

Agreement::Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                     uint64_t number)
    : store_(std::move(store)), rank_(rank), number_(number) {
  for (int r = 0; r < world_size; ++r) keys_.push_back(key(number, r));
}

std::string Agreement::key(uint64_t number, int rank) const {
  return str("agreement/", number, "/", rank);
}

void Agreement::propose(const std::string& signature) {
  store_->set(keys_[rank_], std::vector<uint8_t>(signature.begin(), signature.end()));
  // Whoever proposes this one has seen all of the last, so nobody reads the one before any more.
  if (number_ > 2) store_->deleteKey(key(number_ - 2, rank_));
}

bool Agreement::is_complete() { return store_->check(keys_); }

std::optional<std::string> Agreement::mismatch() {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;  // In the order of ranks.
  const auto proposals = store_->multiGet(keys_);
  for (size_t r = 0; r < proposals.size(); ++r) {
    const std::string text(proposals[r].begin(), proposals[r].end());
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& other) { return other.first == text; });
    if (group == groups.end()) group = groups.insert(groups.end(), {text, {}});
    group->second.push_back(str("rank ", r));
  }
  if (groups.size() < 2) return std::nullopt;
  std::vector<std::string> lines;
  for (const auto& [text, ranks] : groups)
    lines.push_back(core::join(ranks, " and ") + ": " + text);
  return core::join(lines, "; ");
}

}  // namespace drivetrain::comm
