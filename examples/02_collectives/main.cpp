// SPDX-License-Identifier: Apache-2.0
// Ranks, and values that travel between them. Collectives take nested values: a struct of tensors
// is reduced as easily as one.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

#include <iostream>

struct Statistics {
  torch::Tensor sum, count;
};

int main() {
  drivetrain::Accelerator accelerator;
  const int rank = accelerator.process_index();

  // Each rank has seen rank + 1 samples of value rank.
  Statistics mine{torch::tensor(1.0 * rank * (rank + 1)), torch::tensor(1.0 * (rank + 1))};
  const Statistics all = accelerator.reduce(mine);
  accelerator.print("mean ", (all.sum / all.count).item<double>());

  // Rows of different numbers, without padding.
  const auto rows = accelerator.gather(torch::full({rank + 1}, rank));
  accelerator.print("rows ", rows.size(0));

  // Work that is not a tensor: each rank its share of a list.
  const std::vector<std::string> files = {"a", "b", "c", "d", "e"};
  for (const auto& file : accelerator.split_between_processes(files))
    std::cout << "rank " + std::to_string(rank) + " reads " + file + "\n" << std::flush;

  // One rank finds a reason to stop; all learn of it.
  if (accelerator.is_last_process()) accelerator.set_trigger();
  if (accelerator.check_trigger()) accelerator.print("stopping");
}
