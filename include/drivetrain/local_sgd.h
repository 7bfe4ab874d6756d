// SPDX-License-Identifier: Apache-2.0
// Local SGD (Stich 2019, 1805.09767): ranks train for themselves, and average their parameters now
// and then instead of their gradients in every step.
#pragma once

#include <drivetrain/accelerator.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace drivetrain {

struct LocalSgdOptions {
  int64_t steps = 8;    // >= 1; between two averages
  bool enabled = true;  // off: gradients are averaged in every step, as ever
};

//   {
//     drivetrain::LocalSgd local(accelerator, model, {.steps = 8});
//     for (auto& batch : batches) { ...; optimizer.step(); local.step(); }
//   }   // averages once more
//
// Within the scope backward passes of the model exchange nothing. Optimizer state and buffers stay
// the rank's own. In a world of one it does nothing.
class LocalSgd {
 public:
  // Throws std::invalid_argument if options.steps is below 1.
  template <class P>
  LocalSgd(const Accelerator& accelerator, const P& model, LocalSgdOptions options = {})
      : LocalSgd(accelerator.world(), accelerator.state_of(model), options) {}

  // Collective, like the last average(), which it makes unless an exception ends the scope.
  ~LocalSgd() noexcept(false);
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  // After each update. Collective in every `steps`-th call.
  void step();

  // Collective. Blocks. Gives every rank the mean of the parameters.
  void average();

 private:
  LocalSgd(World world, std::shared_ptr<training::ModelState> model, LocalSgdOptions options);

  World world_;
  std::shared_ptr<training::ModelState> model_;
  LocalSgdOptions options_;
  bool was_syncing_ = true;
  int64_t num_steps_ = 0;
  int exceptions_at_start_;
};

}  // namespace drivetrain
