// SPDX-License-Identifier: Apache-2.0
// Blocks whose activations are computed again in backward instead of kept: what that saves.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

namespace nn = torch::nn;

namespace {

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 8; ++i)
      blocks->push_back(nn::Sequential(nn::Linear(64, 256), nn::GELU(), nn::Linear(256, 64)));
    register_module("blocks", blocks);
  }

  torch::Tensor forward(torch::Tensor x) {
    for (const auto& module : *blocks) {
      const auto block = std::dynamic_pointer_cast<nn::SequentialImpl>(module);
      const auto run = [block](const torch::Tensor& y) { return block->forward(y); };
      x = x + (is_checkpointed ? drivetrain::activation_checkpoint(run, x) : run(x));
    }
    return x;
  }

  nn::ModuleList blocks;
  bool is_checkpointed = false;
};
TORCH_MODULE(Net);

}  // namespace

int main() {
  torch::manual_seed(7);
  drivetrain::Accelerator accelerator;
  auto net = accelerator.prepare(Net());
  const auto hardware = drivetrain::get_accelerator();
  const auto x = torch::randn({1024, 64}, accelerator.device());
  int64_t peaks[2] = {};
  for (const bool is_checkpointed : {false, true}) {
    net->is_checkpointed = is_checkpointed;
    hardware->reset_peak_memory_stats();
    accelerator.backward(net->forward(x).pow(2).mean());
    hardware->synchronize();
    peaks[is_checkpointed ? 1 : 0] = hardware->max_memory_allocated();
  }
  accelerator.print("peak without ", peaks[0], ", with ", peaks[1]);
}
