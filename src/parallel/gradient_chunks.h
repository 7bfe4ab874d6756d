// SPDX-License-Identifier: Apache-2.0
// The gradients of a model in flat buffers, and their way through one backward: a gradient arrives
// and is scaled into its slot; a chunk whose slots have all arrived starts its reduction as soon as
// all chunks before it have; at the end of backward the rest follows, and everything is waited for.
//
// The flags that tell used gradients from unused ones travel in the same message, behind the slots.
// Not thread-safe.
#pragma once

#include <drivetrain/parallel.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/layout.h"

namespace drivetrain::parallel {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class GradientChunks {
 public:
  // `parameters` are leaves, all different; `hook` is not null. With float32_gradients, those of
  // 16-bit parameters become float32 as they arrive, and stay so.
  GradientChunks(World world, NamedTensors parameters, ChunkCaps caps,
                 std::shared_ptr<CommHook> hook, bool float32_gradients = false);

  // Lays the gradients of these parameters out anew, in this order. The other parameters have none.
  void set_order(std::vector<size_t> order);
  const std::vector<size_t>& order() const { return order_; }
  const std::vector<ChunkLayout>& layouts() const { return layouts_; }

  // Throws ConfigError if a parameter has been moved or converted since set_order(): LibTorch then
  // accumulates its gradient elsewhere.
  void check_parameters() const;

  // The gradient of a parameter in order() is complete on this rank: times `scale` into its slot,
  // of which it becomes a window. Collective when that completes a chunk.
  // Throws ConfigError if the gradient cannot be reduced, or has arrived already.
  void arrive(size_t parameter, double scale);

  // Collective. Reduces the chunks that are left, with the gradients that are there though they
  // have not arrived, and zeros for the others.
  void launch_rest(double scale);

  // Collective. The same for a rank that only answers the others: zeros, whatever there is.
  void launch_zeros();

  // Blocks. Finishes all reductions; then each gradient that any rank has is its slot's window.
  void finish();

  // Blocks. Finishes what has been launched, assigns no gradient, and forgets all arrivals.
  void discard();

  // The parameters in order of their arrival since the last finish() or discard().
  const std::vector<size_t>& arrivals() const { return arrivals_; }

  // How many chunks have been reduced so far.
  int64_t num_reductions() const { return num_reductions_; }

 private:
  struct Chunk {
    GradientChunk content;
    std::vector<at::Tensor> windows;  // of the gradients' own types
    size_t num_missing = 0;
    CommHook::Finish finish;
  };
  struct Place {
    size_t chunk = 0;
    size_t slot = 0;
  };

  Chunk make_chunk(const ChunkLayout& layout, size_t index) const;
  at::Tensor& window(size_t parameter);
  const at::Tensor& window(size_t parameter) const;
  void contribute(size_t parameter, double scale);
  void contribute_nothing(size_t parameter);
  SlotSpec spec_of(const at::Tensor& parameter) const;
  void check_type(size_t parameter, const at::Tensor& tensor, const char* what) const;
  at::Tensor reducible(size_t parameter, const at::Tensor& gradient) const;
  void set_used(Chunk& chunk);
  void launch_next();
  void assign_unused(Chunk& chunk);
  void forget_arrivals();

  World world_;
  NamedTensors parameters_;
  ChunkCaps caps_;
  std::shared_ptr<CommHook> hook_;
  bool float32_gradients_;
  std::vector<at::ScalarType> types_;  // of the parameters, as they were laid out
  std::vector<size_t> order_;
  std::vector<ChunkLayout> layouts_;
  std::vector<Chunk> chunks_;
  std::vector<Place> places_;       // by parameter; meaningful for those in order_
  std::vector<char> has_arrived_;   // by parameter
  std::vector<char> has_gradient_;  // by parameter
  std::vector<size_t> arrivals_;
  size_t num_launched_ = 0;
  int64_t num_reductions_ = 0;
};

}  // namespace drivetrain::parallel
