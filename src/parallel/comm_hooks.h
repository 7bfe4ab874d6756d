// SPDX-License-Identifier: Apache-2.0
// The communication hooks that options can name, PowerSGD's apart (power_sgd.h).
#pragma once

#include <drivetrain/parallel.h>

#include <memory>

namespace drivetrain::parallel {

// The hook that `options` describe; plain all-reduce where they describe none.
// Throws ConfigError as DistributedDataParallelOptions says.
std::shared_ptr<CommHook> make_comm_hook(const DistributedDataParallelOptions& options);

// `chunk` with its contents copied into a buffer of another type.
GradientChunk converted(const GradientChunk& chunk, at::ScalarType dtype);

// Sums chunks as they are.
class AllReduceHook : public CommHook {
 public:
  Finish reduce(const World& world, const GradientChunk& chunk) override;
};

// Hands a copy in `dtype` to another hook, and copies its result back. Chunks of a type that is
// not larger are handed on as they are.
class ConvertingHook : public CommHook {
 public:
  ConvertingHook(at::ScalarType dtype, std::shared_ptr<CommHook> inner);
  Finish reduce(const World& world, const GradientChunk& chunk) override;
  void chunks_changed() override;

 private:
  at::ScalarType dtype_;
  std::shared_ptr<CommHook> inner_;
};

}  // namespace drivetrain::parallel
