// SPDX-License-Identifier: Apache-2.0
// What carries bytes between the ranks: one implementation a communication library. All tensors are
// contiguous and on the device that the transport serves.
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/comm.h>

#include <memory>

#include "comm/record.h"

namespace drivetrain::comm {

// One operation under way.
class Work {
 public:
  virtual ~Work() = default;

  // True once complete; false after `time`. Throws std::exception if the operation failed.
  virtual bool wait_for(Milliseconds time) = 0;

  virtual bool done() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Operations end with an error of the transport's own after `limit` at the latest.
  using Started = std::unique_ptr<Work>;
  virtual Started all_reduce(at::Tensor tensor, ReduceOp op, Milliseconds limit) = 0;
  virtual Started reduce(at::Tensor tensor, ReduceOp op, int root, Milliseconds limit) = 0;
  // Part r of world_size equal parts of the sum into rank r's `out`; `in` may be overwritten.
  virtual Started reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op,
                                 Milliseconds limit) = 0;
  virtual Started broadcast(at::Tensor tensor, int root, Milliseconds limit) = 0;
  virtual Started all_gather(at::Tensor out, at::Tensor in, Milliseconds limit) = 0;

  // Row r of the root's `in` into rank r's `out`; `in` is undefined elsewhere.
  virtual Started scatter(at::Tensor out, at::Tensor in, int root, Milliseconds limit) = 0;

  // Blocks until nothing is under way any more, or `limit` has passed: false then.
  virtual bool finish(Milliseconds limit) = 0;

  // Ends all operations under way with an error; none can be started any more.
  virtual void abort() = 0;
};

}  // namespace drivetrain::comm
