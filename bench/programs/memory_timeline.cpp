// SPDX-License-Identifier: Apache-2.0
// A step of an MLP of 100 parameter tensors with AdamW, watched by a timeline and not. Both run
// over the counting allocator, which is in place once a process has asked for its memory.
#include <torch/torch.h>

#include <drivetrain/memory.h>

#include <vector>

#include "blocks.h"
#include "mlp.h"

namespace {

struct Training {
  torch::nn::Sequential model = bench::mlp(std::vector<int64_t>(51, 128));
  torch::optim::AdamW optimizer{model->parameters(), 1e-3};

  void step(const at::Tensor& data) {
    optimizer.zero_grad();
    model->forward(data).pow(2).mean().backward();
    optimizer.step();
  }
};

}  // namespace

int main() {
  const auto data = torch::randn({256, 128});
  torch::manual_seed(0);
  Training watched;
  torch::manual_seed(0);
  Training plain;
  drivetrain::MemoryTimeline timeline(drivetrain::make_accelerator("cpu"));
  timeline.track(*watched.model, "model");
  timeline.track(watched.optimizer);
  const auto watched_step = [&] {
    watched.step(data);
    timeline.mark("step");
    timeline.step();
  };
  const auto plain_step = [&] { plain.step(data); };
  watched_step(), plain_step();
  bench::expect_equal(watched.model->parameters(), plain.model->parameters());
  std::vector<bench::Side> sides = {{"watched", watched_step}, {"plain", plain_step}};
  bench::time_by_turns(sides, {.warmups = 2, .blocks = 7, .steps = 5});
  bench::report(sides);
}
