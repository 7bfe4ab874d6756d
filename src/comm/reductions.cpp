// SPDX-License-Identifier: Apache-2.0
// The collectives that compute: all_reduce, reduce, reduce_scatter. Tensors that are reduced in one
// type travel as one buffer.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <drivetrain/comm.h>

#include <functional>
#include <map>
#include <stdexcept>

#include "comm/packing.h"
#include "comm/reduction.h"
#include "comm/state.h"
#include "core/text.h"

namespace drivetrain::comm {
namespace {

// Reduces the encoded rows of one type. Gets a buffer of shape (rows, columns).
using ReduceRows = std::function<at::Tensor(const at::Tensor& rows)>;

// Indices of the tensors by the type they are reduced in, the same on every rank.
std::map<at::ScalarType, std::vector<size_t>> by_type(const char* name, const Tensors& tensors,
                                                      ReduceOp op) {
  std::map<at::ScalarType, std::vector<size_t>> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    require_reducible(name, tensors[i].scalar_type(), op);
    groups[reduced_in(tensors[i].scalar_type())].push_back(i);
  }
  return groups;
}

// Reduces with each tensor seen as `num_rows` rows along dim 0; the result has as many as
// `reduce_rows` leaves.
Tensors reduce_grouped(const char* name, const Tensors& tensors, ReduceOp op, int64_t num_rows,
                       int world_size, const ReduceRows& reduce_rows) {
  Tensors results(tensors.size());
  for (const auto& [dtype, members] : by_type(name, tensors, op)) {
    Tensors columns;
    for (const size_t i : members)
      columns.push_back(tensors[i]
                            .detach()
                            .to(at::kCPU, dtype)
                            .reshape({num_rows, tensors[i].numel() / num_rows}));
    const at::Tensor sent = at::cat(columns, 1);
    if (sent.numel() == 0) {
      for (size_t k = 0; k < members.size(); ++k) results[members[k]] = columns[k];
      continue;
    }
    const at::Tensor reduced = decode(reduce_rows(encode(sent, op)), op, world_size);
    int64_t next = 0;
    for (size_t k = 0; k < members.size(); ++k) {
      results[members[k]] = reduced.narrow(1, next, columns[k].size(1));
      next += columns[k].size(1);
    }
  }
  return results;
}

// The result's rows in the shape, type and device of what was given.
at::Tensor restore(const at::Tensor& rows, const at::Tensor& like, c10::IntArrayRef sizes) {
  if (!like.defined()) return like;
  return rows.reshape(sizes).to(like.device(), like.scalar_type()).contiguous();
}

}  // namespace
}  // namespace drivetrain::comm

namespace drivetrain::detail {

using comm::Record;
using comm::State;

Tensors all_reduce(const World& world, const Tensors& tensors, ReduceOp op,
                   const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  State& state = world.state();
  comm::by_type("all_reduce", tensors, op);
  if (world.world_size() == 1) return tensors;
  const Record record = state.begin("all_reduce", tensors, options);
  Tensors results = comm::reduce_grouped(
      "all_reduce", tensors, op, 1, world.world_size(), [&](const at::Tensor& rows) {
        state.await(*state.transport().all_reduce(rows, op, record.timeout), record);
        return rows;
      });
  for (size_t i = 0; i < tensors.size(); ++i)
    results[i] = comm::restore(results[i], tensors[i], tensors[i].sizes());
  return results;
}

Tensors reduce(const World& world, const Tensors& tensors, int root, ReduceOp op,
               const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  State& state = world.state();
  comm::by_type("reduce", tensors, op);
  state.require_root("reduce", root);
  if (world.world_size() == 1) return tensors;
  const Record record = state.begin("reduce", tensors, options);
  Tensors results = comm::reduce_grouped(
      "reduce", tensors, op, 1, world.world_size(), [&](const at::Tensor& rows) {
        state.await(*state.transport().reduce(rows, op, root, record.timeout), record);
        return rows;
      });
  if (world.rank() != root) return tensors;
  for (size_t i = 0; i < tensors.size(); ++i)
    results[i] = comm::restore(results[i], tensors[i], tensors[i].sizes());
  return results;
}

Tensors reduce_scatter(const World& world, const Tensors& tensors, ReduceOp op,
                       const CollectiveOptions& options) {
  at::NoGradGuard no_grad;
  State& state = world.state();
  comm::by_type("reduce_scatter", tensors, op);
  const int64_t size = world.world_size();
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && (tensor.dim() == 0 || tensor.size(0) % size != 0))
      throw std::invalid_argument(
          core::str("reduce_scatter of a tensor of shape ", tensor.sizes(), " over ", size,
                    " ranks; allowed: a dim 0 that is a multiple of ", size, "; pad it"));
  if (size == 1) return tensors;
  const Record record = state.begin("reduce_scatter", tensors, options);
  Tensors results = comm::reduce_grouped(
      "reduce_scatter", tensors, op, size, static_cast<int>(size), [&](const at::Tensor& rows) {
        at::Tensor mine = at::empty({1, rows.size(1)}, rows.options());
        state.await(*state.transport().reduce_scatter(mine, rows, op, record.timeout), record);
        return mine;
      });
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    std::vector<int64_t> sizes = tensors[i].sizes().vec();
    sizes[0] /= size;
    results[i] =
        comm::restore(results[i].narrow(0, 0, results[i].numel() > 0 ? 1 : 0), tensors[i], sizes);
  }
  return results;
}

}  // namespace drivetrain::detail
