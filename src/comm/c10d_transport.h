// SPDX-License-Identifier: Apache-2.0
// A transport over any backend of c10d.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <deque>
#include <mutex>

#include "comm/transport.h"

namespace drivetrain::comm {

class C10dTransport : public Transport {
 public:
  explicit C10dTransport(c10::intrusive_ptr<c10d::Backend> backend);

  Started all_reduce(at::Tensor tensor, ReduceOp op, Milliseconds limit) override;
  Started reduce(at::Tensor tensor, ReduceOp op, int root, Milliseconds limit) override;
  Started reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op, Milliseconds limit) override;
  Started broadcast(at::Tensor tensor, int root, Milliseconds limit) override;
  Started all_gather(at::Tensor out, at::Tensor in, Milliseconds limit) override;
  Started scatter(at::Tensor out, at::Tensor in, int root, Milliseconds limit) override;
  bool finish(Milliseconds limit) override;
  void abort() override;

 protected:
  // The backend's own wait gives back a CPU collective at once when it is complete; an
  // accelerator's only orders the current stream behind it, so its completion is asked for.
  virtual bool wait_blocks() const { return false; }

  c10::intrusive_ptr<c10d::Backend> backend_;

 private:
  Started started(c10::intrusive_ptr<c10d::Work> work);
  size_t forget_completed();

  std::mutex mutex_;
  std::deque<c10::intrusive_ptr<c10d::Work>> under_way_;
};

// c10d compares sizes where only the number of elements matters.
at::Tensor flat(const at::Tensor& tensor);

}  // namespace drivetrain::comm
