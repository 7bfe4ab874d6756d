// SPDX-License-Identifier: Apache-2.0
// Trains a small convolutional net on 4,000 MNIST digits and tests it on 1,000 others:
//   drivetrain launch --num-processes 2 demo_digits mnist_5k.csv.gz
// The batch of 64 is the whole world's, so that the result does not depend on the number of
// processes.
#include <drivetrain/drivetrain.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "digits.h"

namespace {

namespace nn = torch::nn;

constexpr int kEpochs = 6;

struct DigitDataset : torch::data::datasets::Dataset<DigitDataset> {
  explicit DigitDataset(Digits all) : digits(std::move(all)) {}
  torch::data::Example<> get(size_t index) override {
    return {digits.images[static_cast<int64_t>(index)], digits.labels[static_cast<int64_t>(index)]};
  }
  torch::optional<size_t> size() const override { return digits.labels.size(0); }

  Digits digits;
};

nn::Sequential small_net() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 5)), nn::ReLU(), nn::MaxPool2d(2),
                        nn::Conv2d(nn::Conv2dOptions(16, 32, 5)), nn::ReLU(), nn::MaxPool2d(2),
                        nn::Flatten(), nn::Linear(512, 64), nn::ReLU(), nn::Linear(64, 10));
}

template <class Model, class Batches>
double accuracy(drivetrain::Accelerator& accelerator, Model& model, Batches& batches) {
  torch::NoGradGuard no_grad;
  model->eval();
  int64_t correct = 0, count = 0;
  for (auto& batch : batches) {
    const auto hits = model->forward(batch.data).argmax(1).eq(batch.target);
    const auto all = accelerator.gather_for_metrics(hits);
    correct += all.sum().template item<int64_t>();
    count += all.numel();
  }
  model->train();
  return static_cast<double>(correct) / static_cast<double>(count);
}

void train(const std::string& path) {
  drivetrain::Accelerator accelerator;
  torch::manual_seed(1);
  const Split digits = split(read_digits(path));
  const drivetrain::DataLoaderOptions options{
      .batch_size = 64, .shuffle = true, .split_batches = true};
  auto model = accelerator.prepare(small_net());
  auto optimizer = accelerator.prepare(torch::optim::AdamW(model->parameters(), 2e-3));
  auto batches = accelerator.prepare(drivetrain::DataLoader(DigitDataset(digits.train), options));
  auto tests = accelerator.prepare(drivetrain::DataLoader(DigitDataset(digits.test), options));

  const int64_t samples = digits.train.labels.size(0);
  const auto start = std::chrono::steady_clock::now();
  drivetrain::ProgressBar bar(
      kEpochs * samples,
      {.description = "training", .unit = "samples", .enabled = accelerator.is_main_process()});
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& batch : batches) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      bar.advance(std::min(batches.total_batch_size(), (epoch + 1) * samples - bar.count()));
    }
    bar.set_status("epoch " + std::to_string(epoch + 1));
  }
  bar.finish();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double held_out = accuracy(accelerator, model, tests);
  accelerator.print("processes ", accelerator.num_processes(), ", held-out accuracy ", held_out,
                    " on 1000 digits, ",
                    static_cast<int64_t>(kEpochs * static_cast<double>(samples) / seconds.count()),
                    " samples/s");
  if (!(held_out >= 0.96)) throw std::runtime_error("held-out accuracy is below 0.96");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: demo_digits mnist_5k.csv.gz\n";
    return 2;
  }
  try {
    train(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
