// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d_transport.h"

#include <ATen/ops/chunk.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace drivetrain::comm {
namespace {

class BlockingWork : public Work {
 public:
  explicit BlockingWork(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  bool wait_for(Milliseconds time) override {
    try {
      work_->wait(time);
      return true;
    } catch (const std::exception&) {
      // Work::wait throws for its own timeout as well as for a failed operation.
      if (work_->isCompleted()) throw;
      return false;
    }
  }

  bool done() override { return work_->isCompleted(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class PolledWork : public Work {
 public:
  explicit PolledWork(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  bool wait_for(Milliseconds time) override {
    const auto deadline = Clock::now() + time;
    for (std::chrono::microseconds pause(10); !work_->isCompleted();
         pause = std::min<std::chrono::microseconds>(pause * 2, Milliseconds(1))) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(pause);
    }
    work_->wait();  // Throws if it failed; orders the current stream behind it.
    return true;
  }

  bool done() override { return work_->isCompleted(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    default:  // A mean is a sum here; the caller divides.
      return c10d::ReduceOp::SUM;
  }
}

}  // namespace

at::Tensor flat(const at::Tensor& tensor) { return tensor.view({tensor.numel()}); }

C10dTransport::C10dTransport(c10::intrusive_ptr<c10d::Backend> backend)
    : backend_(std::move(backend)) {}

Transport::Started C10dTransport::all_reduce(at::Tensor tensor, ReduceOp op, Milliseconds limit) {
  c10d::AllreduceOptions options;
  options.reduceOp = c10d_op(op);
  options.timeout = limit;
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  return started(backend_->allreduce(tensors, options));
}

Transport::Started C10dTransport::reduce(at::Tensor tensor, ReduceOp op, int root,
                                         Milliseconds limit) {
  c10d::ReduceOptions options;
  options.reduceOp = c10d_op(op);
  options.rootRank = root;
  options.timeout = limit;
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  return started(backend_->reduce(tensors, options));
}

Transport::Started C10dTransport::reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op,
                                                 Milliseconds limit) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d_op(op);
  options.timeout = limit;
  out = flat(out);
  in = flat(in);
  return started(backend_->_reduce_scatter_base(out, in, options));
}

Transport::Started C10dTransport::broadcast(at::Tensor tensor, int root, Milliseconds limit) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = limit;
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  return started(backend_->broadcast(tensors, options));
}

Transport::Started C10dTransport::all_gather(at::Tensor out, at::Tensor in, Milliseconds limit) {
  c10d::AllgatherOptions options;
  options.timeout = limit;
  out = flat(out);
  in = flat(in);
  return started(backend_->_allgather_base(out, in, options));
}

Transport::Started C10dTransport::scatter(at::Tensor out, at::Tensor in, int root,
                                          Milliseconds limit) {
  c10d::ScatterOptions options;
  options.rootRank = root;
  options.timeout = limit;
  std::vector<at::Tensor> outs = {flat(out)};
  std::vector<std::vector<at::Tensor>> ins;
  if (backend_->getRank() == root) ins.push_back(flat(in).chunk(backend_->getSize()));
  return started(backend_->scatter(outs, ins, options));
}

bool C10dTransport::finish(Milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (forget_completed() > 0) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return true;
}

void C10dTransport::abort() { backend_->abort(); }

Transport::Started C10dTransport::started(c10::intrusive_ptr<c10d::Work> work) {
  forget_completed();
  {
    std::lock_guard lock(mutex_);
    under_way_.push_back(work);
  }
  if (wait_blocks()) return std::make_unique<BlockingWork>(std::move(work));
  return std::make_unique<PolledWork>(std::move(work));
}

// The number of those that are left.
size_t C10dTransport::forget_completed() {
  std::lock_guard lock(mutex_);
  while (!under_way_.empty() && under_way_.front()->isCompleted()) under_way_.pop_front();
  return under_way_.size();
}

}  // namespace drivetrain::comm
