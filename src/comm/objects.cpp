// SPDX-License-Identifier: Apache-2.0
// Collectives on plain bytes: two messages, the lengths and the bytes.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <drivetrain/comm.h>

#include <algorithm>
#include <cstring>

#include "comm/state.h"

namespace drivetrain {

using comm::Record;
using comm::State;

std::string broadcast_object(const World& world, std::string bytes, int root,
                             CollectiveOptions options) {
  State& state = world.state();
  state.require_root("broadcast_object", root);
  if (world.world_size() == 1) return bytes;
  const Record record = state.begin({.name = "broadcast_object", .root = root}, {}, options);
  at::Tensor length = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  state.await(state.transport().broadcast(length, root, record.timeout), record);
  bytes.resize(*length.const_data_ptr<int64_t>());
  if (bytes.empty()) return bytes;
  at::Tensor message = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(message.mutable_data_ptr(), bytes.data(), bytes.size());
  state.await(state.transport().broadcast(message, root, record.timeout), record);
  std::memcpy(bytes.data(), message.const_data_ptr(), bytes.size());
  return bytes;
}

// Each text follows its length.
std::vector<std::string> broadcast_object(const World& world, std::vector<std::string> texts,
                                          int root, CollectiveOptions options) {
  std::string bytes;
  for (const std::string& text : texts) {
    const uint64_t length = text.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length).append(text);
  }
  bytes = broadcast_object(world, std::move(bytes), root, options);
  texts.clear();
  for (size_t next = 0; next < bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + next, sizeof length);
    texts.push_back(bytes.substr(next + sizeof length, length));
    next += sizeof length + length;
  }
  return texts;
}

std::vector<std::string> gather_object(const World& world, const std::string& bytes,
                                       CollectiveOptions options) {
  if (world.world_size() == 1) return {bytes};
  State& state = world.state();
  const Record record = state.begin({.name = "gather_object"}, {}, options);
  const int64_t size = world.world_size();
  const at::Tensor mine = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  const at::Tensor lengths = at::empty({size}, at::kLong);
  state.await(state.transport().all_gather(lengths, mine, record.timeout), record);
  const int64_t* length = lengths.const_data_ptr<int64_t>();
  const int64_t longest = std::max<int64_t>(1, *std::max_element(length, length + size));
  const at::Tensor message = at::zeros({longest}, at::kByte);
  std::memcpy(message.mutable_data_ptr(), bytes.data(), bytes.size());
  const at::Tensor rows = at::empty({size, longest}, at::kByte);
  state.await(state.transport().all_gather(rows, message, record.timeout), record);
  std::vector<std::string> all;
  for (int64_t r = 0; r < size; ++r)
    all.emplace_back(static_cast<const char*>(rows.const_data_ptr()) + r * longest, length[r]);
  return all;
}

}  // namespace drivetrain
