// SPDX-License-Identifier: Apache-2.0
// The collectives that move: all_gather, gather, broadcast, scatter, pad_across_processes. All
// tensors of a call travel as one message.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <drivetrain/comm.h>

#include <algorithm>
#include <optional>

#include "comm/packing.h"
#include "comm/state.h"
#include "core/text.h"

namespace drivetrain::comm {
namespace {

// Every rank's message, of one length, as rows.
at::Tensor gather_messages(State& state, const Route& route, const at::Tensor& message,
                           const Record& record) {
  at::Tensor rows = at::empty({state.facts().world_size, message.numel()},
                              message.options().pinned_memory(false));
  state.await(route.transport.all_gather(rows, message, record.timeout), record);
  return rows;
}

}  // namespace
}  // namespace drivetrain::comm

namespace drivetrain {

using comm::Record;
using comm::Route;
using comm::State;
using core::str;

namespace detail {

Tensors all_gather(const World& world, const Tensors& tensors, const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  if (world.world_size() == 1) return tensors;
  State& state = world.state();
  const Record record = state.begin({.name = "all_gather"}, tensors, options);
  const Route route = state.route(tensors);
  const auto offsets = comm::offsets_of(tensors);
  const at::Tensor rows =
      comm::gather_messages(state, route, comm::pack(tensors, offsets, route.device), record);
  Tensors results;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) {
      results.emplace_back();
      continue;
    }
    const Sizes counts(world.world_size(), comm::num_rows_of(tensors[i]));
    results.push_back(comm::concatenate(rows, offsets[i], counts, tensors[i]));
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

// For each tensor, the number of rows of each rank. Fails if anything but dim 0 differs.
std::vector<Sizes> gather_row_counts(State& state, const Tensors& tensors, const Record& record) {
  const auto num_tensors = static_cast<int64_t>(tensors.size());
  const at::Tensor mine = at::empty({num_tensors, 2}, at::kLong);
  int64_t* next = mine.mutable_data_ptr<int64_t>();
  for (const at::Tensor& tensor : tensors) {
    *next++ = tensor.defined() ? comm::num_rows_of(tensor) : 0;
    *next++ = row_signature(tensor);
  }
  const at::Tensor all = comm::gather_messages(state, state.host_route(), mine, record);
  const auto* said = all.const_data_ptr<int64_t>();
  std::vector<Sizes> counts(num_tensors);
  for (int64_t r = 0; r < all.size(0); ++r)
    for (int64_t i = 0; i < num_tensors; ++i, said += 2) {
      counts[i].push_back(said[0]);
      if (said[1] != all.const_data_ptr<int64_t>()[2 * i + 1])
        state.raise(core::str("gather: tensor ", i, " of rank ", r,
                              " differs from rank 0's in type or ",
                              "in a size other than dim 0 (this rank's is ",
                              comm::signature({.name = "gather", .is_ragged = true}, tensors[i]),
                              "); allowed: rows of one type and shape"));
    }
  return counts;
}

}  // namespace

Tensors gather(const World& world, const Tensors& tensors, Sizes* rows,
               const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  const size_t size = world.world_size();
  const bool has_rows = !tensors.empty() && tensors[0].defined();
  if (rows != nullptr) rows->assign(size, has_rows ? comm::num_rows_of(tensors[0]) : 0);
  if (size == 1) return tensors;
  State& state = world.state();
  const Record record = state.begin({.name = "gather", .is_ragged = true}, tensors, options);
  if (tensors.empty()) return {};
  const auto counts = gather_row_counts(state, tensors, record);
  if (rows != nullptr) *rows = counts[0];

  // Messages of one length: each tensor takes the room of the rank that has most of its rows.
  std::vector<int64_t> longest;
  for (const Sizes& count : counts)
    longest.push_back(*std::max_element(count.begin(), count.end()));
  const auto offsets = comm::offsets_of(tensors, &longest);
  const Route route = state.route(tensors);
  const at::Tensor messages =
      comm::gather_messages(state, route, comm::pack(tensors, offsets, route.device), record);
  Tensors results;
  for (size_t i = 0; i < tensors.size(); ++i)
    results.push_back(tensors[i].defined()
                          ? comm::concatenate(messages, offsets[i], counts[i], tensors[i])
                          : at::Tensor());
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
  const Route route = state.route(tensors);
  const auto bytes = at::TensorOptions(at::kByte).device(route.device);
  const at::Tensor message = world.rank() == root ? comm::pack(tensors, offsets, route.device)
                                                  : at::empty({offsets.back()}, bytes);
  state.await(route.transport.broadcast(message, root, record.timeout), record);
  return comm::unpack(message, tensors, offsets);
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
  const at::Tensor lengths =
      std::get<0>(comm::gather_messages(state, state.host_route(), mine, record).max(0));
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
