// SPDX-License-Identifier: Apache-2.0
// Gradients that travel in half precision: half the bytes between the ranks.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

int main() {
  torch::manual_seed(7);
  drivetrain::Accelerator accelerator({.ddp = {.comm_hook = drivetrain::CommHookKind::bf16}});
  auto net = accelerator.prepare(torch::nn::Linear(8, 1));
  auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
  double first = 0, last = 0;
  for (int step = 0; step < 50; ++step) {
    const auto x = torch::randn({16, 8}, accelerator.device());
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(net->forward(x), x.sum(1, /*keepdim=*/true));
    accelerator.backward(loss);
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  accelerator.print(last < first / 100 ? "learned" : "did not learn");
}
