// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <drivetrain/comm.h>

#include <functional>
#include <utility>

#include "comm/reduction.h"
#include "comm/staging.h"
#include "comm/state.h"
#include "core/invalid_argument.h"
#include "core/text.h"

namespace drivetrain {

using comm::Call;
using comm::Record;
using comm::State;
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

// The tensor's own memory, as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().view({tensor.numel()}).view(at::kByte);
}

using StartOn = std::function<Transport::Started(Transport&, at::Tensor out, at::Tensor in)>;

// On the tensors themselves where something carries their device's memory, else on copies on the
// host: of `in` once the device has computed it, and into `out`, which may be the same, at the end.
Pending start(const std::shared_ptr<State>& state, const Record& record, const at::Tensor& out,
              const at::Tensor& in, const StartOn& start_on,
              const std::function<void()>& after = {}) {
  const bool on_host = out.is_cpu() && in.is_cpu();
  const auto route = on_host ? state->host_route() : state->device_route({out, in});
  if (route)
    return Pending(
        std::make_shared<Call>(state, record, start_on(route->transport, out, in), after));
  const comm::OnHost sent = comm::copy_to_host(in);
  const at::Tensor got = out.is_same(in) ? sent.tensor : comm::host_buffer_for(out);
  auto work = state->start_after(sent.ready, [start_on, got, sent = sent.tensor](Transport& host) {
    return start_on(host, got, sent);
  });
  return Pending(std::make_shared<Call>(state, record, std::move(work), [out, got, after] {
    comm::copy_to_device(out, got);
    if (after) after();
  }));
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
  const auto all_reduce = [op, limit = record.timeout](Transport& transport, at::Tensor out,
                                                       const at::Tensor&) {
    return transport.all_reduce(std::move(out), op, limit);
  };
  const at::Tensor values = tensor.detach();
  if (comm::travels_as_it_is(tensor.scalar_type(), op)) {
    std::function<void()> divide;
    if (op == ReduceOp::mean) divide = [values, size = world_size()] { values.div_(size); };
    return start(state_, record, values, values, all_reduce, divide);
  }
  const at::Device device = state_->device_route(values) ? values.device() : at::kCPU;
  const at::Tensor sent = comm::encode(comm::to_reducible(values, device).view({1, -1}), op);
  return start(state_, record, sent, sent, all_reduce, [values, sent, op, size = world_size()] {
    at::NoGradGuard no_grad;
    values.copy_(comm::from_reducible(comm::decode(sent, op, size), values, values.sizes()));
  });
}

Pending World::broadcast_async(at::Tensor tensor, int root, CollectiveOptions options) const {
  require_contiguous("broadcast_async", tensor);
  state_->require_root("broadcast_async", root);
  if (world_size() == 1) return {};
  const Record record = state_->begin({.name = "broadcast", .root = root}, tensor, options);
  if (tensor.numel() == 0) return {};
  const at::Tensor bytes = bytes_of(tensor);
  return start(
      state_, record, bytes, bytes,
      [root, limit = record.timeout](Transport& transport, at::Tensor out, const at::Tensor&) {
        return transport.broadcast(std::move(out), root, limit);
      });
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
  return start(state_, record, bytes_of(out), bytes_of(in),
               [limit = record.timeout](Transport& transport, at::Tensor to, at::Tensor from) {
                 return transport.all_gather(std::move(to), std::move(from), limit);
               });
}

}  // namespace drivetrain
