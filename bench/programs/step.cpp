// SPDX-License-Identifier: Apache-2.0
// A step of a tiny MLP with AdamW in one process of one thread: prepared, and written by hand with
// LibTorch alone; the twin of step.py.
#include <torch/torch.h>

#include <drivetrain/accelerator.h>

#include "blocks.h"
#include "mlp.h"

int main() {
  at::set_num_threads(1);
  const auto data = torch::randn({32, 64});
  const auto target = torch::randint(10, {32});

  torch::manual_seed(0);
  auto plain_model = bench::mlp({64, 64, 10});
  torch::optim::AdamW plain_optimizer(plain_model->parameters(), 1e-3);
  const auto plain_step = [&] {
    const auto loss = torch::cross_entropy_loss(plain_model->forward(data), target);
    loss.backward();
    plain_optimizer.step();
    plain_optimizer.zero_grad();
  };

  torch::manual_seed(0);
  drivetrain::Accelerator accelerator;
  auto model = accelerator.prepare(bench::mlp({64, 64, 10}));
  auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 1e-3));
  const auto step = [&] {
    const auto loss = torch::cross_entropy_loss(model->forward(data), target);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  };

  for (int i = 0; i < 10; ++i) step(), plain_step();
  bench::expect_equal(model->parameters(), plain_model->parameters());
  std::vector<bench::Side> sides = {{"ours", step}, {"libtorch", plain_step}};
  bench::time_by_turns(sides, {.warmups = 300, .blocks = 20, .steps = 200});
  bench::report(sides);
}
