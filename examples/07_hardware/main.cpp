// SPDX-License-Identifier: Apache-2.0
// The hardware layer alone: the same calls on the CPU and on every accelerator, and a question
// before a call that not every device can serve.
#include <drivetrain/hardware.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  const auto accelerator = drivetrain::get_accelerator();
  std::cout << "device " << accelerator->get_current_device() << " of "
            << accelerator->device_count() << "\n";
  for (const auto& probe : drivetrain::probe_report())
    std::cout << (probe.chosen ? "* " : "  ") << probe.name << ": " << probe.reason << "\n";

  accelerator->reset_peak_memory_stats();
  const auto before = accelerator->memory_allocated();
  const auto x = torch::ones({1024, 1024}, accelerator->get_current_device());
  std::cout << "a tensor of " << x.nbytes() << " bytes took "
            << accelerator->memory_allocated() - before << "\n";
  if (accelerator->capabilities().utilization)
    std::cout << "utilization " << accelerator->utilization() << " %\n";

  auto begin = accelerator->Event(/*enable_timing=*/true);
  auto end = accelerator->Event(/*enable_timing=*/true);
  begin.record();
  const auto y = x.matmul(x);
  end.record();
  end.synchronize();
  std::cout << "matmul took " << (begin.elapsed_time(end) > 0 ? "time" : "no time") << "\n";

  const auto autocast = accelerator->autocast(true, torch::kBFloat16);
  std::cout << "under autocast " << x.matmul(x).dtype() << "\n";
}
