// SPDX-License-Identifier: Apache-2.0
// A program for two devices, on a laptop: a network with each half on its own device, batches that
// are copied while kernels run, and a batch size found by running out of memory. On real devices
// only the first two lines of main would change.
#include <drivetrain/hardware.h>
#include <drivetrain_sim/sim.h>
#include <torch/torch.h>

#include <iostream>

namespace nn = torch::nn;

int main() {
  drivetrain::sim::load({.devices = 2, .memory_bytes = 16 << 20});
  drivetrain::set_accelerator("sim");
  const auto accelerator = drivetrain::get_accelerator();
  std::cout << accelerator->repr() << "\n";
  accelerator->set_device(1);
  const auto last = accelerator->get_current_device();
  accelerator->set_device(0);
  const auto first = accelerator->get_current_device();

  torch::manual_seed(0);
  nn::Sequential front(nn::Linear(32, 256), nn::ReLU());
  nn::Linear back(256, 1);
  drivetrain::move_module_(*front, first);
  drivetrain::move_module_(*back, last);
  auto parameters = front->parameters();
  for (const auto& each : back->parameters()) parameters.push_back(each);
  torch::optim::SGD optimizer(parameters, 0.05);

  const auto copies = accelerator->Stream();
  auto copied = accelerator->Event();
  const auto step = [&](const torch::Tensor& rows) {
    torch::Tensor x;
    {
      const auto guard = accelerator->stream(copies);
      x = rows.to(first, /*non_blocking=*/true);  // pinned: the host goes on at once
      copied.record();
    }
    copied.wait();  // the kernels wait for the copy, the host does not
    x.record_stream(accelerator->current_stream());
    const auto y = back->forward(front->forward(x).to(last));
    const auto target = rows.sum(1, /*keepdim=*/true).to(last);
    const auto loss = torch::mse_loss(y, target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    return loss.detach();
  };

  int64_t rows = 1 << 15;
  while (true) try {
      step(torch::randn({rows, 32}).pin_memory());
      break;
    } catch (const c10::OutOfMemoryError& error) {
      std::cout << rows << " rows: " << error.what_without_backtrace() << "\n";
      rows /= 2;
      accelerator->empty_cache();
    }
  std::cout << "rows " << rows << "\n";

  std::cout << "loss " << step(torch::randn({rows, 32}).pin_memory()).item<float>();
  torch::Tensor loss;
  for (int i = 0; i < 50; ++i) loss = step(torch::randn({rows, 32}).pin_memory());
  std::cout << " to " << loss.item<float>() << "\n";
  std::cout << "peak " << accelerator->max_memory_allocated(0) << " of "
            << accelerator->total_memory(0) << " bytes\n";
}
