// SPDX-License-Identifier: Apache-2.0
// Four micro-batches to an update, with one exchange between the ranks.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

int main() {
  torch::manual_seed(7);
  drivetrain::Accelerator accelerator({.gradient_accumulation = {.steps = 4}});
  auto net = accelerator.prepare(torch::nn::Linear(8, 1));
  auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
  double first = 0, last = 0;
  int updates = 0;
  for (int i = 0; i < 200; ++i) {
    const auto micro_batch = accelerator.accumulate(net);
    const auto x = torch::randn({16, 8}, accelerator.device());
    const auto loss = torch::mse_loss(net->forward(x), x.sum(1, /*keepdim=*/true));
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    updates += optimizer.outcome() == drivetrain::StepOutcome::stepped ? 1 : 0;
    last = loss.item<double>();
    if (i == 0) first = last;
  }
  accelerator.print("updates ", updates, last < first / 100 ? " learned" : " did not learn");
}
