// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <drivetrain/comm.h>

#include <stdexcept>

#include "comm/reduction.h"
#include "comm/state.h"
#include "core/text.h"

namespace drivetrain {

using core::str;

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
    throw std::invalid_argument(str(name,
                                    " of a tensor that is not contiguous; allowed: a "
                                    "contiguous one; pass tensor.contiguous()"));
}

}  // namespace

Pending World::all_reduce_async(at::Tensor tensor, ReduceOp op, CollectiveOptions options) const {
  require_contiguous("all_reduce_async", tensor);
  comm::require_reducible("all_reduce_async", tensor.scalar_type(), op);
  if (world_size() == 1) return {};
  const auto record = state_->begin("all_reduce", tensor, options);
  auto work = state_->transport().all_reduce(tensor, op, record.timeout);
  std::function<void()> finish;
  if (op == ReduceOp::mean)
    finish = [tensor, size = world_size()] {
      at::NoGradGuard no_grad;
      tensor.div_(size);
    };
  return Pending(std::make_shared<comm::Call>(state_, record, std::move(work), std::move(finish)));
}

Pending World::broadcast_async(at::Tensor tensor, int root, CollectiveOptions options) const {
  require_contiguous("broadcast_async", tensor);
  if (world_size() == 1) return {};
  const auto record = state_->begin("broadcast", tensor, options);
  auto work = state_->transport().broadcast(tensor, root, record.timeout);
  return Pending(std::make_shared<comm::Call>(state_, record, std::move(work), nullptr));
}

Pending World::all_gather_async(at::Tensor out, at::Tensor in, CollectiveOptions options) const {
  require_contiguous("all_gather_async", out);
  require_contiguous("all_gather_async", in);
  if (world_size() == 1) {
    at::NoGradGuard no_grad;
    out.view(in.sizes()).copy_(in);
    return {};
  }
  const auto record = state_->begin("all_gather", in, options);
  auto work = state_->transport().all_gather(out, in, record.timeout);
  return Pending(std::make_shared<comm::Call>(state_, record, std::move(work), nullptr));
}

}  // namespace drivetrain
