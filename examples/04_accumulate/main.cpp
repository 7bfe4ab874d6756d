// SPDX-License-Identifier: Apache-2.0
// Four micro-batches to an update, with one exchange between the ranks: within no_sync gradients
// add up locally, and the first backward after it averages the sum.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

int main() {
  torch::manual_seed(7);
  drivetrain::Accelerator accelerator;
  auto net = accelerator.prepare(torch::nn::Linear(8, 1));
  auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
  const auto loss_of_random_batch = [&] {
    const auto x = torch::randn({16, 8}, accelerator.device());
    return torch::mse_loss(net->forward(x), x.sum(1, /*keepdim=*/true)) / 4;
  };
  double first = 0, last = 0;
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    {
      const auto no_sync = accelerator.no_sync(net);
      for (int micro_step = 0; micro_step < 3; ++micro_step)
        accelerator.backward(loss_of_random_batch());
    }
    const auto loss = loss_of_random_batch();
    accelerator.backward(loss);
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  accelerator.print(last < first / 100 ? "learned" : "did not learn");
}
