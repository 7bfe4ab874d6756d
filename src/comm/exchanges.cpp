// SPDX-License-Identifier: Apache-2.0
// The collectives that move: all_gather, gather, broadcast, scatter, pad_across_processes. All
// tensors of a call travel as one message.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <drivetrain/comm.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "comm/packing.h"
#include "comm/state.h"
#include "core/text.h"

namespace drivetrain::comm {
namespace {

// Every rank's message, of one length, as rows.
at::Tensor gather_messages(State& state, const at::Tensor& message, const Record& record) {
  at::Tensor rows = at::empty({state.facts().world_size, message.numel()}, message.options());
  state.await(state.transport().all_gather(rows, message, record.timeout), record);
  return rows;
}

const char* row_bytes(const at::Tensor& rows, int64_t row, int64_t offset) {
  return static_cast<const char*>(rows.const_data_ptr()) +
         (row * rows.size(1)) * rows.element_size() + offset;
}

}  // namespace
}  // namespace drivetrain::comm

namespace drivetrain {

using comm::Record;
using comm::State;
using core::str;

namespace detail {

Tensors all_gather(const World& world, const Tensors& tensors, const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  if (world.world_size() == 1) return tensors;
  State& state = world.state();
  const Record record = state.begin({.name = "all_gather"}, tensors, options);
  const auto offsets = comm::offsets_of(tensors);
  const at::Tensor rows = comm::gather_messages(state, comm::pack(tensors, offsets), record);
  Tensors results;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<comm::Piece> pieces;
    for (int64_t r = 0; tensors[i].defined() && r < world.world_size(); ++r)
      pieces.push_back({comm::row_bytes(rows, r, offsets[i]), comm::num_rows_of(tensors[i])});
    results.push_back(tensors[i].defined() ? comm::concatenate(pieces, tensors[i]) : at::Tensor());
  }
  return results;
}

namespace {

// What ranks must agree on but for dim 0: the type and the other sizes.
int64_t row_signature(const at::Tensor& tensor) {
  if (!tensor.defined()) return -1;
  size_t hash = static_cast<size_t>(tensor.scalar_type()) * 31 + std::min<int64_t>(tensor.dim(), 1);
  for (int64_t d = 1; d < tensor.dim(); ++d) hash = hash * 1000003 + tensor.size(d) + 1;
  return static_cast<int64_t>(hash >> 1);
}

// int64 (world, 2 * tensors): each rank's number of rows and signature for each tensor.
at::Tensor gather_row_counts(State& state, const Tensors& tensors, const Record& record) {
  at::Tensor mine = at::empty({static_cast<int64_t>(tensors.size()) * 2}, at::kLong);
  int64_t* next = mine.mutable_data_ptr<int64_t>();
  for (const at::Tensor& tensor : tensors) {
    *next++ = tensor.defined() ? comm::num_rows_of(tensor) : 0;
    *next++ = row_signature(tensor);
  }
  return comm::gather_messages(state, mine, record);
}

void require_same_rows(State& state, const Tensors& tensors, const at::Tensor& counts) {
  const auto at = counts.accessor<int64_t, 2>();
  for (int64_t i = 0; i < static_cast<int64_t>(tensors.size()); ++i)
    for (int64_t r = 1; r < counts.size(0); ++r)
      if (at[r][2 * i + 1] != at[0][2 * i + 1])
        state.raise(core::str("gather: tensor ", i, " of rank ", r,
                              " differs from rank 0's in type or in "
                              "a size other than dim 0 (here: ",
                              tensors[i].toString(), " ", tensors[i].sizes(),
                              "); allowed: rows of one type and shape"));
}

}  // namespace

Tensors gather(const World& world, const Tensors& tensors, Sizes* rows,
               const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  const bool has_rows = !tensors.empty() && tensors[0].defined();
  if (world.world_size() == 1) {
    if (rows != nullptr) *rows = {has_rows ? comm::num_rows_of(tensors[0]) : 0};
    return tensors;
  }
  State& state = world.state();
  const int64_t size = world.world_size();
  if (rows != nullptr) rows->assign(size, 0);
  const Record record = state.begin({.name = "gather", .is_ragged = true}, tensors, options);
  if (tensors.empty()) return {};
  const at::Tensor counts = gather_row_counts(state, tensors, record);
  require_same_rows(state, tensors, counts);
  const auto count = counts.accessor<int64_t, 2>();
  if (rows != nullptr)
    for (int64_t r = 0; r < size; ++r) (*rows)[r] = count[r][0];

  // Messages of one length: each tensor takes the room of the rank that has most of its rows.
  std::vector<int64_t> longest(tensors.size(), 0);
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t r = 0; r < size; ++r) longest[i] = std::max(longest[i], count[r][2 * i]);
  const auto offsets = comm::offsets_of(tensors, &longest);
  const at::Tensor messages = comm::gather_messages(state, comm::pack(tensors, offsets), record);
  Tensors results(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    std::vector<comm::Piece> pieces;
    for (int64_t r = 0; r < size; ++r)
      pieces.push_back({comm::row_bytes(messages, r, offsets[i]), count[r][2 * i]});
    results[i] = comm::concatenate(pieces, tensors[i]);
  }
  return results;
}

Tensors broadcast(const World& world, const Tensors& tensors, int root,
                  const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  State& state = world.state();
  state.require_root("broadcast", root);
  if (world.world_size() == 1) return tensors;
  const Record record = state.begin({.name = "broadcast", .root = root}, tensors, options);
  const auto offsets = comm::offsets_of(tensors);
  const at::Tensor message =
      world.rank() == root ? comm::pack(tensors, offsets) : at::empty({offsets.back()}, at::kByte);
  state.await(state.transport().broadcast(message, root, record.timeout), record);
  return comm::unpack(static_cast<const char*>(message.const_data_ptr()), tensors, offsets);
}

}  // namespace detail

void World::broadcast_(const std::vector<at::Tensor>& tensors, int root,
                       CollectiveOptions options) const {
  at::NoGradGuard no_grad;
  const auto received = detail::broadcast(*this, tensors, root, options);
  if (rank() == root) return;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].defined()) tensors[i].copy_(received[i]);
}

namespace detail {

namespace {

// A part in a form that needs nothing of the receiver: for each tensor its type (-1: undefined),
// number of dims and sizes, then the packed bytes.
std::string serialize(const Tensors& tensors) {
  std::vector<int64_t> head;
  for (const at::Tensor& tensor : tensors) {
    head.push_back(tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : -1);
    if (!tensor.defined()) continue;
    head.push_back(tensor.dim());
    head.insert(head.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  const auto offsets = comm::offsets_of(tensors);
  const at::Tensor message = comm::pack(tensors, offsets);
  std::string bytes(reinterpret_cast<const char*>(head.data()), head.size() * sizeof(int64_t));
  return bytes.append(static_cast<const char*>(message.const_data_ptr()), message.nbytes());
}

Tensors deserialize(const char* bytes, size_t num_tensors) {
  const auto next = [&bytes] {
    int64_t value = 0;
    std::memcpy(&value, bytes, sizeof value);
    bytes += sizeof value;
    return value;
  };
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
  return comm::unpack(bytes, like, comm::offsets_of(like));
}

void require_parts(const World& world, const std::vector<Tensors>& parts, size_t num_tensors) {
  if (parts.size() != static_cast<size_t>(world.world_size()))
    throw std::invalid_argument(str("scatter of ", parts.size(), " parts over ", world.world_size(),
                                    " ranks; allowed: one part a rank"));
  for (size_t r = 0; r < parts.size(); ++r)
    if (parts[r].size() != num_tensors)
      throw std::invalid_argument(str("scatter: part ", r, " has ", parts[r].size(),
                                      " tensors and `like` has ", num_tensors,
                                      "; allowed: equal numbers; pass a `like` of a part's form"));
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
  const int64_t size = world.world_size();
  const Record record = state.begin({.name = "scatter", .root = root}, {}, options);
  std::vector<std::string> messages;
  int64_t longest = 0;
  for (int64_t r = 0; is_root && r < size; ++r) {
    messages.push_back(serialize(parts[r]));
    longest = std::max<int64_t>(longest, static_cast<int64_t>(messages.back().size()));
  }
  at::Tensor length = at::full({1}, longest, at::kLong);
  state.await(state.transport().broadcast(length, root, record.timeout), record);
  longest = *length.const_data_ptr<int64_t>();
  at::Tensor rows;
  if (is_root) {
    rows = at::zeros({size, longest}, at::kByte);
    for (int64_t r = 0; r < size; ++r)
      std::memcpy(static_cast<char*>(rows[r].mutable_data_ptr()), messages[r].data(),
                  messages[r].size());
  }
  const at::Tensor mine = at::empty({1, longest}, at::kByte);
  state.await(state.transport().scatter(mine, rows, root, record.timeout), record);
  return deserialize(static_cast<const char*>(mine.const_data_ptr()), num_tensors);
}

namespace {

// The dim, counted from the front, or none where the tensor has too few.
std::optional<int64_t> dim_in(const at::Tensor& tensor, int64_t dim) {
  if (!tensor.defined()) return std::nullopt;
  const int64_t positive = dim < 0 ? dim + tensor.dim() : dim;
  if (positive < 0 || positive >= tensor.dim()) return std::nullopt;
  return positive;
}

at::Tensor pad_to(const at::Tensor& tensor, int64_t dim, int64_t length, double pad_index,
                  bool pad_first) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[dim] = length - tensor.size(dim);
  if (sizes[dim] == 0) return tensor.detach().clone(at::MemoryFormat::Contiguous);
  const at::Tensor padding = at::full(sizes, pad_index, tensor.options());
  return pad_first ? at::cat({padding, tensor}, dim) : at::cat({tensor, padding}, dim);
}

}  // namespace

Tensors pad_across_processes(const World& world, const Tensors& tensors, int64_t dim,
                             double pad_index, bool pad_first, const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  if (world.world_size() == 1 || tensors.empty()) return tensors;
  State& state = world.state();
  const Record record = state.begin(
      {.name = "pad_across_processes", .is_ragged = true, .ragged_dim = dim}, tensors, options);
  const at::Tensor mine = at::zeros({static_cast<int64_t>(tensors.size())}, at::kLong);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (const auto d = dim_in(tensors[i], dim))
      mine.mutable_data_ptr<int64_t>()[i] = tensors[i].size(*d);
  const at::Tensor lengths = std::get<0>(comm::gather_messages(state, mine, record).max(0));
  Tensors results = tensors;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (const auto d = dim_in(tensors[i], dim))
      results[i] =
          pad_to(tensors[i], *d, lengths.const_data_ptr<int64_t>()[i], pad_index, pad_first);
  return results;
}

}  // namespace detail

void barrier(const World& world, CollectiveOptions options) {
  if (world.world_size() == 1) return;
  State& state = world.state();
  const Record record = state.begin({.name = "barrier"}, {}, options);
  const at::Tensor nothing = at::zeros({1}, at::kByte);
  state.await(state.transport().all_reduce(nothing, ReduceOp::max, record.timeout), record);
}

}  // namespace drivetrain
