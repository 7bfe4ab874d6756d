// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <drivetrain/comm.h>

#include "comm/reduction.h"
#include "comm/state.h"
#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain {

using comm::Call;
using comm::Record;
using comm::Transport;

void Pending::wait() {
  if (call_) call_->wait();
}

bool Pending::done() const { return !call_ || call_->done(); }

int World::rank() const { return state_->facts().rank; }
int World::world_size() const { return state_->facts().world_size; }
int World::local_rank() const { return state_->facts().local_rank; }
int World::local_world_size() const { return state_->facts().local_world_size; }
int World::node_rank() const { return state_->facts().node_rank; }
int World::num_nodes() const { return state_->facts().num_nodes; }
void World::fail(std::string_view reason) const { state_->fail(reason); }

namespace {

void require_contiguous(const char* name, const at::Tensor& tensor) {
  if (!tensor.is_contiguous())
    core::refuse("comm", core::str(name,
                                   " of a tensor that is not contiguous; allowed: a "
                                   "contiguous one; pass tensor.contiguous()"));
}

// The tensor's own memory, as bytes; a copy where it is not on the CPU.
at::Tensor host_bytes(const at::Tensor& tensor) {
  return tensor.detach().cpu().view({tensor.numel()}).view(at::kByte);
}

void copy_from_host(const at::Tensor& tensor, const at::Tensor& bytes) {
  at::NoGradGuard no_grad;
  tensor.copy_(bytes.view(tensor.scalar_type()).view(tensor.sizes()));
}

}  // namespace

Pending World::all_reduce_async(at::Tensor tensor, ReduceOp op, CollectiveOptions options) const {
  require_contiguous("all_reduce_async", tensor);
  comm::require_reducible("all_reduce_async", tensor.scalar_type(), op);
  if (world_size() == 1) return {};
  const Record record =
      state_->begin({.name = "all_reduce", .op = comm::op_name(op)}, tensor, options);
  if (tensor.numel() == 0) return {};
  at::NoGradGuard no_grad;
  const bool is_direct = tensor.is_cpu() && comm::travels_as_it_is(tensor.scalar_type(), op);
  const at::Tensor sent =
      is_direct ? tensor.detach() : comm::encode(comm::to_reducible(tensor).view({1, -1}), op);
  std::function<void()> finish;
  if (!is_direct)
    finish = [tensor, sent, op, size = world_size()] {
      at::NoGradGuard no_grad;
      tensor.copy_(comm::from_reducible(comm::decode(sent, op, size), tensor, tensor.sizes()));
    };
  else if (op == ReduceOp::mean)
    finish = [sent, size = world_size()] { sent.div_(size); };
  return Pending(std::make_shared<Call>(
      state_, record, state_->transport().all_reduce(sent, op, record.timeout), finish));
}

Pending World::broadcast_async(at::Tensor tensor, int root, CollectiveOptions options) const {
  require_contiguous("broadcast_async", tensor);
  state_->require_root("broadcast_async", root);
  if (world_size() == 1) return {};
  const Record record = state_->begin({.name = "broadcast", .root = root}, tensor, options);
  if (tensor.numel() == 0) return {};
  const at::Tensor bytes = host_bytes(tensor);
  std::function<void()> finish;
  if (!tensor.is_cpu()) finish = [tensor, bytes] { copy_from_host(tensor, bytes); };
  return Pending(std::make_shared<Call>(
      state_, record, state_->transport().broadcast(bytes, root, record.timeout), finish));
}

Pending World::all_gather_async(at::Tensor out, at::Tensor in, CollectiveOptions options) const {
  require_contiguous("all_gather_async", out);
  require_contiguous("all_gather_async", in);
  if (out.numel() != in.numel() * world_size() || out.scalar_type() != in.scalar_type())
    core::refuse("comm", core::str("all_gather_async of ", in.numel(), " elements of ",
                                   comm::dtype_name(in.scalar_type()), " into ", out.numel(),
                                   " of ", comm::dtype_name(out.scalar_type()),
                                   "; allowed: ", in.numel() * world_size(),
                                   " of the same type, as the world has ", world_size(), " ranks"));
  if (world_size() == 1) {
    at::NoGradGuard no_grad;
    out.copy_(in.view(out.sizes()));
    return {};
  }
  const Record record = state_->begin({.name = "all_gather"}, in, options);
  if (in.numel() == 0) return {};
  const at::Tensor gathered = host_bytes(out);
  std::function<void()> finish;
  if (!out.is_cpu()) finish = [out, gathered] { copy_from_host(out, gathered); };
  auto work = state_->transport().all_gather(gathered, host_bytes(in), record.timeout);
  return Pending(std::make_shared<Call>(state_, record, std::move(work), finish));
}

}  // namespace drivetrain
