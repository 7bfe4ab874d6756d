// SPDX-License-Identifier: Apache-2.0
// An exact metric over 103 samples, on any number of processes: rows that only fill up the last
// round of batches are never counted.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

int main() {
  drivetrain::Accelerator accelerator;
  const auto numbers = torch::arange(103, torch::kFloat);
  std::vector<torch::Tensor> samples;
  for (int64_t i = 0; i < numbers.size(0); ++i) samples.push_back(numbers[i]);

  auto batches = accelerator.prepare(drivetrain::DataLoader(samples, {.batch_size = 16}));
  int64_t count = 0;
  double sum = 0;
  for (auto& batch : batches) {
    const auto all = accelerator.gather_for_metrics(batch);
    count += all.size(0);
    sum += all.sum().item<double>();
  }
  accelerator.print("samples ", count, ", mean ", sum / static_cast<double>(count));
}
