// SPDX-License-Identifier: Apache-2.0
// What the loss scale and the accumulation scope add to a step in one process of one thread: a loss
// on one small parameter, whose backward and SGD step cost next to nothing.
#include <torch/torch.h>

#include <drivetrain/accelerator.h>

#include "blocks.h"

namespace {

struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl() : weight(register_parameter("weight", torch::zeros({64}))) {}
  torch::Tensor forward() { return weight.sum(); }
  torch::Tensor weight;
};
TORCH_MODULE(OneWeight);

struct Training {
  explicit Training(drivetrain::MixedPrecision precision)
      : accelerator({.mixed_precision = precision}) {}

  void step() {
    accelerator.backward(model->weight.sum());  // not under autocast, which is no bookkeeping
    optimizer.step();
    optimizer.zero_grad();
  }

  drivetrain::Accelerator accelerator;
  drivetrain::Prepared<OneWeight> model = accelerator.prepare(OneWeight());
  drivetrain::PreparedOptimizer<torch::optim::SGD> optimizer =
      accelerator.prepare(torch::optim::SGD(model->parameters(), 1e-9));
};

}  // namespace

int main() {
  at::set_num_threads(1);
  Training plain(drivetrain::MixedPrecision::no), scaled(drivetrain::MixedPrecision::fp16);
  Training scoped(drivetrain::MixedPrecision::no);
  const auto scoped_step = [&] {
    const auto micro_batch = scoped.accelerator.accumulate(scoped.model);
    scoped.step();
  };
  std::vector<bench::Side> sides = {{"plain", [&] { plain.step(); }},
                                    {"scaled", [&] { scaled.step(); }},
                                    {"scoped", scoped_step}};
  bench::time_by_turns(sides, {.warmups = 2000, .blocks = 20, .steps = 2000});
  bench::report(sides);
}
