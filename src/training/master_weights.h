// SPDX-License-Identifier: Apache-2.0
// Parameters that are kept in 16 bits, and the float32 values that optimizers step on
// (Micikevicius et al. 2018, 1710.03740).
//
// For the time of a step such a parameter *is* its float32 value: the object that the optimizer
// knows points at other memory. So every optimizer, fused or not, works as it does in float32,
// moments included.
#pragma once

#include <drivetrain/precision.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "precision/policy.h"

namespace drivetrain::training {

class MasterWeights {
 public:
  // `masters` as they are now: what is written into a parameter later, by other than a step, its
  // float32 value takes over at the next step.
  MasterWeights(std::vector<precision::Master> masters, const MixedPrecisionPolicy& policy);

  bool empty() const { return entries_.empty(); }

  // Makes gradients of 16 bits float32, so that more can be added without loss.
  void widen_gradients() const;

  // The float32 values by the parameters' names; none without master_weights.
  std::vector<std::pair<std::string, at::Tensor>> values() const;

  // Each parameter's value is what was written into it.
  void take_over_parameters();

  // While it lives, those of the given parameters that are kept in 16 bits are float32.
  class [[nodiscard]] Step {
   public:
    Step(MasterWeights& weights, const std::vector<at::Tensor>& parameters);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // Rounds the new values into the parameters. Without it these are what they were.
    void finish();

   private:
    struct Change {
      size_t entry = 0;
      at::Tensor parameter, low, wide;
    };
    void restore() noexcept;

    MasterWeights& weights_;
    std::vector<Change> changes_;
  };

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter;
    at::Tensor value;      // undefined without master_weights
    int64_t version = -1;  // of the parameter, when it was rounded from the value
  };

  at::Tensor value_for_step(Entry& entry) const;

  std::vector<Entry> entries_;
  bool is_stochastic_;
  uint64_t num_steps_ = 0;
};

}  // namespace drivetrain::training
