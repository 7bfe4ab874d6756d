// SPDX-License-Identifier: Apache-2.0
// Data parallelism for one model: parameters and buffers are rank 0's from the start, and each
// backward, started in whatever way, ends with gradients that are the mean over the ranks.
//
// A hook on each parameter's gradient accumulation feeds the gradient chunks (gradient_chunks.h),
// so reduction overlaps with backward; a callback at the end of the backward that reached a
// parameter first finishes them. The mean is of what each rank has accumulated: a gradient made
// by hand or in earlier backward passes included.
//
// In a world of one nothing is attached and nothing costs anything.
#pragma once

#include <drivetrain/parallel.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/join.h"
#include "parallel/layout.h"

namespace drivetrain::parallel {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class GradientSync {
 public:
  struct ChunkFacts {
    at::ScalarType dtype = at::kFloat;
    int64_t numel = 0;                    // of the gradients in it
    std::vector<std::string> parameters;  // in the order of their slots
  };

  // Restores what synchronisation was when it ends.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(GradientSync& sync) : sync_(sync), was_(sync.is_syncing()) {
      sync_.set_sync(false);
    }
    ~NoSync() { sync_.set_sync(was_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    GradientSync& sync_;
    bool was_;
  };

  // Collective. Blocks. Parameters in the order of their registration; undefined ones and further
  // names of one tensor may be among them. They must already be on their device and of their type,
  // and outlive this object's use. With float32_gradients, gradients of 16-bit parameters become
  // float32 as they are averaged.
  // Throws ConfigError if an option is out of range, if a parameter is no leaf, or (on every rank)
  // if the ranks' models differ.
  GradientSync(const World& world, const NamedTensors& parameters, const NamedTensors& buffers,
               const DistributedDataParallelOptions& options = {}, bool float32_gradients = false);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // Collective. Blocks. To be called before each forward. Sends rank 0's buffers where the
  // forward is one of training that is to be synchronised, if there are buffers and options say so.
  // Takes in parameters that were frozen and now require gradients: all ranks must unfreeze the
  // same ones. Those frozen since count as not used.
  // Throws ConfigError if a parameter has been moved or converted, or the ranks unfroze others.
  void before_forward(bool training);

  // Collective. May be called after each backward of this model, for models whose backward may
  // reach no parameter on some of the ranks: where none was reached since the last forward, reduces
  // the gradients now, as the other ranks do. Without it such a rank leaves the others waiting.
  void after_backward();

  // Collective. Reduces what each rank has accumulated, without a backward.
  void reduce_now();

  // Whether the next backward reduces gradients. If not, they accumulate locally, free of
  // communication and copies; the next one that does reduces the accumulated sums.
  bool is_syncing() const;
  void set_sync(bool sync);
  NoSync no_sync() { return NoSync(*this); }

  // For tests and reports: what is in each chunk, and how many chunks have been reduced (a
  // collective each, unless a hook makes more).
  std::vector<ChunkFacts> chunks() const;
  int64_t num_reductions() const;

  // For Join.
  void set_join(Join* join, size_t index);
  bool is_joined() const;
  void answer(const Join::Announcement& announcement);
  void replicate_from(int root);

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace drivetrain::parallel
