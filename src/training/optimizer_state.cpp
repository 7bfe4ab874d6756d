// SPDX-License-Identifier: Apache-2.0
// The state that LibTorch's optimizers keep of a parameter lives where the parameter did at their
// first step, and no class moves it.
#include "hardware/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <drivetrain/optimizer.h>

namespace drivetrain::detail {

void move_state(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  auto& states = optimizer.state();
  if (states.empty()) return;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      if (found == states.end() || !found->second) continue;
      hardware::visit_state(*found->second, [device = parameter.device()](at::Tensor& tensor) {
        if (tensor.defined()) tensor = tensor.to(device);
      });
    }
}

}  // namespace drivetrain::detail
