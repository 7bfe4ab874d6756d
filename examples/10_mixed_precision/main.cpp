// SPDX-License-Identifier: Apache-2.0
// Matrix products in float16, parameters in float32. The loss scale starts too high on purpose: the
// first steps are skipped until it fits.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

int main() {
  torch::manual_seed(7);
  drivetrain::Accelerator accelerator({.mixed_precision = drivetrain::MixedPrecision::fp16,
                                       .scaler = std::make_shared<drivetrain::GradScaler>(
                                           drivetrain::GradScalerOptions{.init_scale = 0x1p30})});
  auto net = accelerator.prepare(torch::nn::Linear(8, 1));
  auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
  double first = 0, last = 0;
  int skipped = 0;
  for (int step = 0; step < 80; ++step) {
    const auto x = torch::randn({16, 8}, accelerator.device());
    const auto loss = torch::mse_loss(net->forward(x), x.sum(1, /*keepdim=*/true));
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(net->parameters(), 10);
    optimizer.step();
    optimizer.zero_grad();
    skipped += optimizer.outcome() == drivetrain::StepOutcome::skipped ? 1 : 0;
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  accelerator.print("skipped ", skipped, ", first the gradient of ",
                    accelerator.scaler()->last_overflow()->parameter, "; scale ",
                    accelerator.scaler()->get_scale(), "; ",
                    last < first / 100 ? "learned" : "did not learn");
}
