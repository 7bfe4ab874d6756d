// SPDX-License-Identifier: Apache-2.0
// scatter: parts of any shapes and types; the receivers know neither.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <drivetrain/comm.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "comm/packing.h"
#include "comm/state.h"
#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain::detail {

using comm::Record;
using comm::State;
using core::str;

namespace {

// A part in a form that needs nothing of the receiver: the number of tensors; for each its type
// (-1: undefined), number of dims and sizes; zeros up to a multiple of 16 bytes; the packed bytes.
std::string serialize(const Tensors& tensors) {
  std::vector<int64_t> head = {static_cast<int64_t>(tensors.size())};
  for (const at::Tensor& tensor : tensors) {
    head.push_back(tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : -1);
    if (!tensor.defined()) continue;
    head.push_back(tensor.dim());
    head.insert(head.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  const auto offsets = comm::offsets_of(tensors);
  const at::Tensor message = comm::pack(tensors, offsets, at::kCPU);
  if (head.size() % 2 != 0) head.push_back(0);
  std::string bytes(reinterpret_cast<const char*>(head.data()), head.size() * sizeof(int64_t));
  return bytes.append(static_cast<const char*>(message.const_data_ptr()), message.nbytes());
}

Tensors deserialize(const at::Tensor& bytes, size_t num_tensors) {
  const char* const begin = static_cast<const char*>(bytes.const_data_ptr());
  int64_t position = 0;
  const auto next = [&] {
    int64_t value = 0;
    std::memcpy(&value, begin + position, sizeof value);
    position += sizeof value;
    return value;
  };
  const auto sent = static_cast<size_t>(next());
  if (sent != num_tensors)
    core::refuse("comm",
                 str("scatter: the root sent ", sent, " tensors and `like` has ", num_tensors,
                     "; allowed: equal numbers; pass a `like` of a "
                     "part's form on every rank"));
  Tensors like;
  for (size_t i = 0; i < num_tensors; ++i) {
    const int64_t dtype = next();
    std::vector<int64_t> sizes(dtype < 0 ? 0 : next());
    for (int64_t& size : sizes) size = next();
    // Sizes without memory: only the layout is needed.
    like.push_back(dtype < 0 ? at::Tensor()
                             : at::empty(sizes, at::TensorOptions(at::kMeta).dtype(
                                                    static_cast<at::ScalarType>(dtype))));
  }
  const int64_t head = (position + 15) / 16 * 16;
  return comm::unpack(bytes.slice(0, head), like, comm::offsets_of(like));
}

// One row a part, of the longest one's length.
at::Tensor serialize_all(const std::vector<Tensors>& parts) {
  std::vector<std::string> messages;
  size_t longest = 0;
  for (const Tensors& part : parts) {
    messages.push_back(serialize(part));
    longest = std::max(longest, messages.back().size());
  }
  const at::Tensor rows =
      at::zeros({static_cast<int64_t>(parts.size()), static_cast<int64_t>(longest)}, at::kByte);
  char* next = static_cast<char*>(rows.mutable_data_ptr());
  for (const std::string& message : messages) {
    std::copy(message.begin(), message.end(), next);
    next += longest;
  }
  return rows;
}

void require_parts(const World& world, const std::vector<Tensors>& parts, size_t num_tensors) {
  if (parts.size() != static_cast<size_t>(world.world_size()))
    core::refuse("comm", str("scatter of ", parts.size(), " parts over ", world.world_size(),
                             " ranks; allowed: one part a rank"));
  for (size_t r = 0; r < parts.size(); ++r)
    if (parts[r].size() != num_tensors)
      core::refuse("comm",
                   str("scatter: part ", r, " has ", parts[r].size(), " tensors and `like` has ",
                       num_tensors, "; allowed: equal numbers; pass a `like` of a part's form"));
}

}  // namespace

Tensors scatter(const World& world, const std::vector<Tensors>& parts, size_t num_tensors, int root,
                const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  State& state = world.state();
  state.require_root("scatter", root);
  const bool is_root = world.rank() == root;
  if (is_root) require_parts(world, parts, num_tensors);
  if (world.world_size() == 1) return parts[0];
  const Record record = state.begin({.name = "scatter", .root = root}, {}, options);
  const at::Tensor rows = is_root ? serialize_all(parts) : at::Tensor();
  const at::Tensor length = at::full({1}, is_root ? rows.size(1) : 0, at::kLong);
  state.await(state.transport().broadcast(length, root, record.timeout), record);
  const at::Tensor mine = at::empty({1, *length.const_data_ptr<int64_t>()}, at::kByte);
  state.await(state.transport().scatter(mine, rows, root, record.timeout), record);
  return deserialize(mine.view({mine.numel()}), num_tensors);
}

}  // namespace drivetrain::detail
