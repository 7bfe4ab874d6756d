// SPDX-License-Identifier: Apache-2.0
// Fits a parabola. plain.cpp is LibTorch alone; train.cpp runs on any number of processes:
//   drivetrain launch --num-processes 2 01_first_train
#include <torch/torch.h>

#include <iostream>

namespace nn = torch::nn;
namespace data = torch::data;
using InOrder = data::samplers::SequentialSampler;

struct Parabola : data::datasets::Dataset<Parabola> {
  torch::Tensor x = torch::rand({1024, 1}) * 2 - 1, y = x * x;
  data::Example<> get(size_t index) override { return {x[index], y[index]}; }
  torch::optional<size_t> size() const override { return x.size(0); }
};

int main() {
  torch::manual_seed(7);
  auto net = nn::Sequential(nn::Linear(1, 64), nn::Tanh(), nn::Linear(64, 1));
  auto optimizer = torch::optim::AdamW(net->parameters(), 1e-2);
  auto batches = data::make_data_loader<InOrder>(Parabola().map(data::transforms::Stack<>()), 64);
  torch::Tensor loss;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& batch : *batches) {
      optimizer.zero_grad();
      loss = torch::mse_loss(net->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
    }
  }
  std::cout << "loss " << loss.item<float>() << std::endl;
}
