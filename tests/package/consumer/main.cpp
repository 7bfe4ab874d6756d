// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/drivetrain.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

int main() {
  drivetrain::Accelerator accelerator;
  auto model = accelerator.prepare(torch::nn::Linear(2, 1));
  auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 0.1));
  accelerator.backward(model->forward(torch::ones({3, 2}, accelerator.device())).sum());
  optimizer.step();
  accelerator.print("processes ", accelerator.num_processes());
}
