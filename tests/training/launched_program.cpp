// SPDX-License-Identifier: Apache-2.0
// A small training run whose result does not depend on how its processes were started.
// Each rank prints "rank R of N checksum C".
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

#include <cstdio>
#include <iostream>

#include "small_net.h"

int main() {
  try {
    drivetrain::Accelerator accelerator({.config = {.cpu = true}});
    torch::manual_seed(5);
    const auto x = torch::randn({5 * 24, 4}), y = x.sum(1, /*keepdim=*/true).sin();
    auto model = accelerator.prepare(drivetrain::SmallNet(4));
    auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 1e-2));
    const int64_t share = 24 / accelerator.num_processes();
    for (int64_t step = 0; step < 5; ++step) {
      const int64_t begin = step * 24 + accelerator.process_index() * share;
      optimizer.zero_grad();
      accelerator.backward(torch::mse_loss(model->forward(x.slice(0, begin, begin + share)),
                                           y.slice(0, begin, begin + share)));
      optimizer.step();
    }
    double checksum = 0;
    for (const auto& parameter : model->parameters())
      checksum += parameter.abs().sum().item<double>();
    std::printf("rank %d of %d checksum %.9f\n", accelerator.process_index(),
                accelerator.num_processes(), checksum);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
