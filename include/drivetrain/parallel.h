// SPDX-License-Identifier: Apache-2.0
// How a model is trained on several processes: options of data parallelism, and communication
// hooks, which replace the sum of gradients over the ranks by something cheaper.
//
// Gradients live in chunks: flat buffers that hold the gradients of many parameters, summed over
// the ranks by one collective a chunk while backward still runs. After a backward that
// synchronises, each gradient is the mean over the ranks of what each rank had accumulated locally;
// a rank without one counts as zero, and a gradient that no rank has stays undefined. No option is
// needed for parameters that are not used. Gradients are then windows into the chunks (as with
// gradient_as_bucket_view in PyTorch), overwritten by the next backward; sparse ones become dense.
#pragma once

#include <drivetrain/comm.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace drivetrain {

// What a communication hook reduces: one chunk of this rank's gradients, already multiplied by
// 1/(number of ranks), so that the sum over ranks is the mean.
struct GradientChunk {
  at::Tensor flat;                    // 1-D, contiguous: all gradients, then `used`
  at::Tensor used;                    // window: 1 for each gradient this rank has, 0 for the others
  std::vector<at::Tensor> gradients;  // windows into `flat`, in the shapes of the parameters
  std::vector<size_t> parameters;     // for each gradient, the index of its parameter
  size_t index = 0;                   // of this chunk, and
  bool is_last = false;               // whether it is the last one of this backward
};

// Reduces gradient chunks in the place of an all-reduce. Called on every rank for the same chunks
// in the same order; must leave bit-equal values on all ranks.
class CommHook {
 public:
  // What finishes a reduction that reduce() started.
  using Finish = std::function<void()>;

  virtual ~CommHook() = default;

  // Collective. Starts reducing while backward runs; should not block. The function returned is
  // called once, at the end of backward, in the order of the chunks; after it every element of
  // `chunk.flat`, those of `used` included, is the sum over the ranks (`used`: above 0 if any
  // rank's is).
  virtual Finish reduce(const World& world, const GradientChunk& chunk) = 0;

  // The parameters have been assigned to other chunks: state kept for each chunk is void.
  virtual void chunks_changed() {}
};

// fp16, bf16: gradients travel in half precision; they overflow and round as the format does.
// power_sgd: matrices travel as products of two thin ones (Vogels et al. 2019, 1905.13727).
// batched_power_sgd: a whole chunk as one square matrix; faster, less exact.
enum class CommHookKind { none, fp16, bf16, power_sgd, batched_power_sgd };

// The precision in which the messages of PowerSGD travel.
enum class CommWrapper { none, fp16, bf16 };

struct PowerSgdOptions {
  int64_t matrix_approximation_rank = 1;  // >= 1; columns of the thin matrices
  int64_t start_iter = 1000;              // >= 0; plain all-reduce in the steps before
  double min_compression_rate = 2;        // > 0; matrices that save less travel as they are
  bool use_error_feedback = true;         // add to a gradient what its last compression lost
  bool warm_start = true;                 // start from the last step's factors, else at random
  double orthogonalization_epsilon = 0;   // >= 0; added to the norms of columns
  uint32_t seed = 0;                      // of the random factors; the same on all ranks

  bool operator==(const PowerSgdOptions&) const = default;
};

// Throws ConfigError, where it is used, if a value is out of its range or an option is given to
// something that would ignore it.
struct DistributedDataParallelOptions {
  bool broadcast_buffers = true;  // rank 0's buffers to all, before each forward in training
  double bucket_cap_mb = 25;      // > 0; MiB at which a chunk is full
  double first_bucket_mb = 1;     // > 0; the same for the first chunk of each type
  CommHookKind comm_hook = CommHookKind::none;
  CommWrapper comm_wrapper = CommWrapper::none;     // with the two power_sgd hooks only
  PowerSgdOptions power_sgd = {};                   // likewise
  std::shared_ptr<CommHook> custom_hook = nullptr;  // instead of comm_hook; for one model
};

struct JoinOptions {
  // Divide sums of gradients by the world size to the end; else by the number of ranks that still
  // have batches.
  bool divide_by_initial_world_size = true;
  // Throw CommError on every rank as soon as one runs out of batches.
  bool throw_on_early_termination = false;
};

}  // namespace drivetrain
