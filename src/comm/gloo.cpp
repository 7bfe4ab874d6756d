// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <future>
#include <thread>
#include <utility>

#include "comm/c10d_transport.h"

namespace drivetrain::comm {
namespace {

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

// Gives access to the connections, which only abort() needs.
class AbortableGloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

class Gloo : public C10dTransport {
 public:
  explicit Gloo(c10::intrusive_ptr<AbortableGloo> gloo)
      : C10dTransport(gloo), gloo_(std::move(gloo)) {}

  // Closing the connections does not end every send, and the group's destructor waits for those
  // until their timeouts: after an abort it gets half a second, then goes on by itself.
  ~Gloo() override {
    if (!is_aborted_) return;
    backend_.reset();
    std::promise<void> promise;
    std::future<void> ended = promise.get_future();
    std::thread destroyer([gloo = std::move(gloo_), promise = std::move(promise)]() mutable {
      gloo.reset();
      promise.set_value();
    });
    if (ended.wait_for(Milliseconds(500)) == std::future_status::ready)
      destroyer.join();
    else
      destroyer.detach();
  }

  // Gloo's own reduce_scatter takes 0.1 s a call over some worlds; its all_reduce moves twice the
  // bytes of a good one, in a few ms.
  Started reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op, Milliseconds limit) override {
    const at::Tensor mine = in.view({gloo_->getSize(), -1})[gloo_->getRank()];
    Started work = all_reduce(in, op, limit);
    return std::make_unique<CopyAfter>(std::move(work), flat(out), mine);
  }

  void abort() override {
    is_aborted_ = true;
    gloo_->close();
  }

 protected:
  bool wait_blocks() const override { return true; }

 private:
  std::atomic<bool> is_aborted_{false};
  c10::intrusive_ptr<AbortableGloo> gloo_;
};

}  // namespace

std::unique_ptr<Transport> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int world_size, const std::string& address,
                                     Milliseconds limit) {
  auto options = c10d::ProcessGroupGloo::Options::create(limit);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  return std::make_unique<Gloo>(
      c10::make_intrusive<AbortableGloo>(store, rank, world_size, options));
}

}  // namespace drivetrain::comm
