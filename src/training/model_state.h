// SPDX-License-Identifier: Apache-2.0
// What an Accelerator knows of one prepared model. Its stand-ins share it, and it ends with them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace drivetrain::parallel {
class GradientSync;
}

namespace drivetrain::training {

class MasterWeights;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct ModelState {
  uint64_t id = 0;                               // never used twice in a process
  std::shared_ptr<parallel::GradientSync> sync;  // null in a world of one
  std::shared_ptr<MasterWeights> masters;        // null where no parameter is kept in 16 bits
  NamedTensors parameters;                       // a tied one under each of its names
  std::unordered_set<const void*> identities;    // their tensors' implementations

  // Of the group of micro-batches that the model is in; 0: none so far.
  uint64_t group = 0;
  bool is_boundary = true;     // its last micro-batch has begun, so the optimizer may step
  bool has_gradients = false;  // a backward of it has run

  bool owns(const at::Tensor& parameter) const {
    return identities.contains(parameter.unsafeGetTensorImpl());
  }
};

}  // namespace drivetrain::training
