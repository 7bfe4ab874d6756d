// SPDX-License-Identifier: Apache-2.0
// From nothing to the first optimizer step; the twin of first_step.py.
#include <torch/torch.h>

#include <drivetrain/accelerator.h>

#include "blocks.h"

int main() {
  namespace nn = torch::nn;
  drivetrain::Accelerator accelerator;
  torch::manual_seed(0);
  auto model =
      accelerator.prepare(nn::Sequential(nn::Linear(64, 256), nn::ReLU(), nn::Linear(256, 10)));
  auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 1e-3));
  const auto data = torch::randn({32, 64});
  const auto target = torch::randint(10, {32});
  const auto loss = torch::cross_entropy_loss(model->forward(data), target);
  accelerator.backward(loss);
  optimizer.step();
  if (accelerator.is_main_process()) {
    std::ostringstream moment;
    moment.precision(15);
    moment << bench::seconds_now();
    std::cout << "BENCH {\"at\": {\"first_step\": " + moment.str() + "}}" << std::endl;
  }
}
