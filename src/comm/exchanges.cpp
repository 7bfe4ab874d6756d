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
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

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
  uint64_t hash = static_cast<uint64_t>(tensor.scalar_type()) * 31;
  for (int64_t d = 1; d < tensor.dim(); ++d)
    hash = hash * 1000003 + static_cast<uint64_t>(tensor.size(d)) + 1;
  return static_cast<int64_t>(hash & INT64_MAX);  // Never -1.
}

// The tensors whose forms travel with their number, in a message of one size on every rank.
constexpr int64_t kInFirstMessage = 7;

struct Form {
  int64_t num_rows = 0;
  int64_t signature = -1;
};

// Every rank's `mine`, of one length, rank by rank.
std::vector<int64_t> gather_numbers(State& state, const std::vector<int64_t>& mine,
                                    const Record& record) {
  const at::Tensor message = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  std::copy(mine.begin(), mine.end(), message.mutable_data_ptr<int64_t>());
  const at::Tensor all = comm::gather_messages(state, state.host_route(), message, record);
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

// Every rank's forms of tensors `first` to `last`, behind its number of tensors.
std::vector<std::vector<Form>> gather_forms(State& state, const Tensors& tensors, size_t first,
                                            size_t last, const Record& record) {
  std::vector<int64_t> mine = {static_cast<int64_t>(tensors.size())};
  for (size_t i = first; i < last; ++i) {
    const bool is_mine = i < tensors.size() && tensors[i].defined();
    mine.push_back(is_mine ? comm::num_rows_of(tensors[i]) : 0);
    mine.push_back(is_mine ? row_signature(tensors[i]) : -1);
  }
  const auto all = gather_numbers(state, mine, record);
  std::vector<std::vector<Form>> forms(last - first);
  for (size_t start = 0; start < all.size(); start += mine.size()) {
    if (all[start] != mine[0])
      state.raise(str("gather: rank ", start / mine.size(), " gave ", all[start],
                      " tensors and this one ", mine[0],
                      "; allowed: the same number of tensors on every rank"));
    for (size_t i = 0; i < forms.size(); ++i)
      forms[i].push_back({all[start + 1 + 2 * i], all[start + 2 + 2 * i]});
  }
  return forms;
}

// For each tensor, the number of rows of each rank. Fails if anything but dim 0 differs.
std::vector<Sizes> gather_row_counts(State& state, const Tensors& tensors, const Record& record) {
  auto forms = gather_forms(state, tensors, 0, kInFirstMessage, record);
  if (tensors.size() > kInFirstMessage)
    for (auto& more : gather_forms(state, tensors, kInFirstMessage, tensors.size(), record))
      forms.push_back(std::move(more));
  std::vector<Sizes> counts(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    for (size_t r = 0; r < forms[i].size(); ++r) {
      if (forms[i][r].signature != row_signature(tensors[i]))
        state.raise(str("gather: tensor ", i, " of rank ", r,
                        " differs from this rank's in type or in a size other than dim 0 (",
                        comm::signature({.name = "gather", .is_ragged = true}, tensors[i]),
                        "); allowed: rows of one type and shape"));
      counts[i].push_back(forms[i][r].num_rows);
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
  const auto counts = gather_row_counts(state, tensors, record);
  if (tensors.empty()) return {};
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
