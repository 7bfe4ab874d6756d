// SPDX-License-Identifier: Apache-2.0
// Clipping the norm of gradients: ours and LibTorch's, where they shrink ("clipped") and where the
// norm is below the bound ("within").
//
// usage: bench_grad_norm 25m|small
#include <torch/torch.h>

#include <drivetrain/accelerator.h>

#include "blocks.h"
#include "mlp.h"

namespace {

using Tensors = std::vector<at::Tensor>;

Tensors with_gradients(int64_t count, int64_t width) {
  torch::manual_seed(0);
  Tensors all;
  for (int64_t i = 0; i < 2 * count; ++i) {
    const auto shape =
        i % 2 == 0 ? std::vector<int64_t>{width, width} : std::vector<int64_t>{width};
    all.push_back(torch::empty(shape, torch::requires_grad()));
    all.back().mutable_grad() = torch::randn(shape);
  }
  return all;
}

Tensors gradients(const Tensors& parameters) {
  Tensors all;
  for (const auto& parameter : parameters) all.push_back(parameter.grad());
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_small = argc > 1 && std::string(argv[1]) == "small";
  const auto make = [&] { return is_small ? with_gradients(10, 64) : with_gradients(6, 2048); };
  const Tensors ours = make(), theirs = make();
  const drivetrain::Accelerator accelerator;
  const auto our_clip = [&](double bound) { accelerator.clip_grad_norm_(ours, bound); };
  const auto their_clip = [&](double bound) { torch::nn::utils::clip_grad_norm_(theirs, bound); };
  our_clip(1), their_clip(1);
  bench::expect_equal(gradients(ours), gradients(theirs));

  // A bound that falls from call to call, so that every call shrinks the gradients.
  const auto shrinking = [](const auto& clip) {
    return [&clip, bound = 0.5]() mutable { clip(bound *= 0.999); };
  };
  std::vector<bench::Side> sides = {{"ours_clipped", shrinking(our_clip)},
                                    {"libtorch_clipped", shrinking(their_clip)},
                                    {"ours_within", [&] { our_clip(2); }},
                                    {"libtorch_within", [&] { their_clip(2); }}};
  bench::time_by_turns(sides, is_small ? bench::Plan{.warmups = 50, .blocks = 20, .steps = 50}
                                       : bench::Plan{.warmups = 1, .blocks = 7, .steps = 3});
  bench::expect_equal(gradients(ours), gradients(theirs));
  bench::report(sides);
}
