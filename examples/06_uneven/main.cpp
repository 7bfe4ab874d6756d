// SPDX-License-Identifier: Apache-2.0
// Ranks with different numbers of batches: a rank that is done answers the others until all are.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

int main() {
  torch::manual_seed(7);
  drivetrain::Accelerator accelerator;
  auto net = accelerator.prepare(torch::nn::Linear(8, 1));
  auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.05));
  const int num_batches = 10 + 5 * accelerator.process_index();
  accelerator.join_uneven_inputs(
      [&] {
        for (int i = 0; i < num_batches; ++i) {
          optimizer.zero_grad();
          accelerator.backward(
              net->forward(torch::randn({16, 8}, accelerator.device())).square().mean());
          optimizer.step();
        }
      },
      net);
  // Every rank ends with the same parameters.
  const auto sums = accelerator.gather(net->weight.sum().detach());
  accelerator.print(sums.eq(sums[0]).all().item<bool>() ? "equal" : "different");
}
