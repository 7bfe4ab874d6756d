// SPDX-License-Identifier: Apache-2.0
// Where the memory of a training run goes: a picture of it, step by step, with the batch doubled on
// the way.
//
// usage: 09_memory [FOLDER]    writes memory.svg, memory.html, memory.json and snapshot.json there
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  drivetrain::Accelerator accelerator;
  const auto devices = drivetrain::accelerator_of(accelerator.device().type());
  drivetrain::MemoryTimeline timeline(devices, {.title = "An MLP whose batch doubles in step 12"});

  auto model = accelerator.prepare(torch::nn::Sequential(
      torch::nn::Linear(256, 512), torch::nn::ReLU(), torch::nn::Linear(512, 512),
      torch::nn::ReLU(), torch::nn::Linear(512, 10)));
  auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 1e-3));
  timeline.track(*model, "model");
  timeline.track(optimizer);

  for (int step = 0; step < 24; ++step) {
    const int64_t rows = step < 12 ? 512 : 1024;
    const auto x = torch::randn({rows, 256}, accelerator.device());
    optimizer.zero_grad();
    const auto loss = model->forward(x).pow(2).mean();
    timeline.mark("forward");
    accelerator.backward(loss);
    optimizer.step();
    timeline.step();
  }

  if (!accelerator.is_main_process()) return 0;
  timeline.write_svg(folder / "memory.svg");
  timeline.write_html(folder / "memory.html");
  timeline.write_json(folder / "memory.json");
  drivetrain::write_memory_snapshot(*devices, folder / "snapshot.json");
  std::cout << timeline.summary() << "\n" << devices->memory_summary();
}
