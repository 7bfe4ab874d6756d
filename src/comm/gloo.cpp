// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo.h"

#include <ATen/ops/chunk.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace drivetrain::comm {
namespace {

class GlooWork : public Work {
 public:
  explicit GlooWork(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

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

// Work whose result is a copy of a part of what it worked on.
class CopyAfter : public Work {
 public:
  CopyAfter(std::unique_ptr<Work> work, at::Tensor to, at::Tensor from)
      : work_(std::move(work)), to_(std::move(to)), from_(std::move(from)) {}

  bool wait_for(Milliseconds time) override {
    if (!work_->wait_for(time)) return false;
    to_.copy_(from_);
    return true;
  }

  bool done() override { return work_->done(); }

 private:
  std::unique_ptr<Work> work_;
  at::Tensor to_;
  at::Tensor from_;
};

// c10d compares sizes where only the number of elements matters.
at::Tensor flat(const at::Tensor& tensor) { return tensor.view({tensor.numel()}); }

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

// Gives access to the connections, which only abort() needs.
class AbortableGloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

class Gloo : public Transport {
 public:
  Gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
       const std::string& address, Milliseconds limit) {
    auto options = c10d::ProcessGroupGloo::Options::create(limit);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    group_ = c10::make_intrusive<AbortableGloo>(store, rank, world_size, options);
  }

  Started all_reduce(at::Tensor tensor, ReduceOp op, Milliseconds limit) override {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    options.timeout = limit;
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    return started(group_->allreduce(tensors, options));
  }

  Started reduce(at::Tensor tensor, ReduceOp op, int root, Milliseconds limit) override {
    c10d::ReduceOptions options;
    options.reduceOp = c10d_op(op);
    options.rootRank = root;
    options.timeout = limit;
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    return started(group_->reduce(tensors, options));
  }

  // Gloo's own reduce_scatter takes 0.1 s a call over some worlds; its all_reduce moves twice the
  // bytes of a good one, in a few ms.
  Started reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op, Milliseconds limit) override {
    const at::Tensor mine = in.view({group_->getSize(), -1})[group_->getRank()];
    Started work = all_reduce(in, op, limit);
    return std::make_unique<CopyAfter>(std::move(work), flat(out), mine);
  }

  Started broadcast(at::Tensor tensor, int root, Milliseconds limit) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = limit;
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    return started(group_->broadcast(tensors, options));
  }

  Started all_gather(at::Tensor out, at::Tensor in, Milliseconds limit) override {
    c10d::AllgatherOptions options;
    options.timeout = limit;
    out = flat(out);
    in = flat(in);
    return started(group_->_allgather_base(out, in, options));
  }

  Started scatter(at::Tensor out, at::Tensor in, int root, Milliseconds limit) override {
    c10d::ScatterOptions options;
    options.rootRank = root;
    options.timeout = limit;
    std::vector<at::Tensor> outs = {flat(out)};
    std::vector<std::vector<at::Tensor>> ins;
    if (group_->getRank() == root) ins.push_back(flat(in).chunk(group_->getSize()));
    return started(group_->scatter(outs, ins, options));
  }

  bool finish(Milliseconds limit) override {
    const auto deadline = Clock::now() + limit;
    while (forget_completed() > 0) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(Milliseconds(1));
    }
    return true;
  }

  void abort() override { group_->close(); }

 private:
  Started started(c10::intrusive_ptr<c10d::Work> work) {
    forget_completed();
    {
      std::lock_guard lock(mutex_);
      under_way_.push_back(work);
    }
    return std::make_unique<GlooWork>(std::move(work));
  }

  // The number of those that are left.
  size_t forget_completed() {
    std::lock_guard lock(mutex_);
    while (!under_way_.empty() && under_way_.front()->isCompleted()) under_way_.pop_front();
    return under_way_.size();
  }

  std::mutex mutex_;
  std::deque<c10::intrusive_ptr<c10d::Work>> under_way_;

  c10::intrusive_ptr<AbortableGloo> group_;
};

}  // namespace

std::unique_ptr<Transport> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int world_size, const std::string& address,
                                     Milliseconds limit) {
  return std::make_unique<Gloo>(store, rank, world_size, address, limit);
}

}  // namespace drivetrain::comm
