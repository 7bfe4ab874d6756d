// SPDX-License-Identifier: Apache-2.0
// The collectives that compute: all_reduce, reduce, reduce_scatter. Tensors that are reduced in one
// type travel as one buffer.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <drivetrain/comm.h>

#include <functional>
#include <map>

#include "comm/packing.h"
#include "comm/reduction.h"
#include "comm/state.h"
#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain::comm {
namespace {

// Reduces the encoded rows of one type. Gets a buffer of shape (rows, columns).
using ReduceRows = std::function<at::Tensor(const at::Tensor& rows)>;

void require_all_reducible(const char* name, const Tensors& tensors, ReduceOp op) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) require_reducible(name, tensor.scalar_type(), op);
}

// Reduces with each tensor seen as `num_rows` rows along dim 0; the results have as many rows as
// `reduce_rows` leaves, and are as to_reducible makes them. Undefined tensors stay so.
Tensors reduce_grouped(const Tensors& tensors, ReduceOp op, int64_t num_rows, int world_size,
                       at::Device device, const ReduceRows& reduce_rows) {
  std::map<at::ScalarType, std::vector<size_t>> groups;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].defined()) groups[reduced_in(tensors[i].scalar_type())].push_back(i);
  Tensors results(tensors.size());
  for (const auto& [dtype, members] : groups) {
    Tensors columns;
    for (const size_t i : members) {
      const at::Tensor values = to_reducible(tensors[i], device);
      columns.push_back(values.view({num_rows, values.numel() / num_rows}));
    }
    // A column more, so that there is always something to send.
    columns.push_back(at::zeros({num_rows, 1}, at::TensorOptions(dtype).device(device)));
    const at::Tensor sent = encode(at::cat(columns, 1), op);
    const at::Tensor reduced = decode(reduce_rows(sent), op, world_size);
    int64_t next = 0;
    for (size_t k = 0; k < members.size(); ++k) {
      results[members[k]] = reduced.narrow(1, next, columns[k].size(1));
      next += columns[k].size(1);
    }
  }
  return results;
}

// Gives the results the shapes of `like`, with dim 0 divided by `divisor`.
Tensors restore(Tensors results, const Tensors& like, int64_t divisor = 1) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (!like[i].defined()) continue;
    std::vector<int64_t> sizes = like[i].sizes().vec();
    if (divisor > 1) sizes[0] /= divisor;
    results[i] = from_reducible(results[i], like[i], sizes);
  }
  return results;
}

}  // namespace
}  // namespace drivetrain::comm

namespace drivetrain::detail {

using comm::Record;
using comm::Route;
using comm::State;

Tensors all_reduce(const World& world, const Tensors& tensors, ReduceOp op,
                   const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  State& state = world.state();
  comm::require_all_reducible("all_reduce", tensors, op);
  if (world.world_size() == 1) return tensors;
  const Record record =
      state.begin({.name = "all_reduce", .op = comm::op_name(op)}, tensors, options);
  const Route route = state.route(tensors);
  const auto reduce_rows = [&](const at::Tensor& rows) {
    state.await(route.transport.all_reduce(rows, op, record.timeout), record);
    return rows;
  };
  return comm::restore(
      comm::reduce_grouped(tensors, op, 1, world.world_size(), route.device, reduce_rows), tensors);
}

Tensors reduce(const World& world, const Tensors& tensors, int root, ReduceOp op,
               const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  State& state = world.state();
  comm::require_all_reducible("reduce", tensors, op);
  state.require_root("reduce", root);
  if (world.world_size() == 1) return tensors;
  const Record record =
      state.begin({.name = "reduce", .op = comm::op_name(op), .root = root}, tensors, options);
  const Route route = state.route(tensors);
  const auto reduce_rows = [&](const at::Tensor& rows) {
    state.await(route.transport.reduce(rows, op, root, record.timeout), record);
    return rows;
  };
  Tensors results =
      comm::reduce_grouped(tensors, op, 1, world.world_size(), route.device, reduce_rows);
  return world.rank() == root ? comm::restore(std::move(results), tensors) : tensors;
}

Tensors reduce_scatter(const World& world, const Tensors& tensors, ReduceOp op,
                       const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  State& state = world.state();
  comm::require_all_reducible("reduce_scatter", tensors, op);
  const int size = world.world_size();
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && (tensor.dim() == 0 || tensor.size(0) % size != 0))
      core::refuse("comm",
                   core::str("reduce_scatter of a tensor of shape ", tensor.sizes(), " over ", size,
                             " ranks; allowed: a dim 0 that is a multiple of ", size, "; pad it"));
  if (size == 1) return tensors;
  const Record record =
      state.begin({.name = "reduce_scatter", .op = comm::op_name(op)}, tensors, options);
  const Route route = state.route(tensors);
  const auto reduce_rows = [&](const at::Tensor& rows) {
    at::Tensor mine = at::empty({1, rows.size(1)}, rows.options());
    state.await(route.transport.reduce_scatter(mine, rows, op, record.timeout), record);
    return mine;
  };
  return comm::restore(comm::reduce_grouped(tensors, op, size, size, route.device, reduce_rows),
                       tensors, size);
}

}  // namespace drivetrain::detail
