// SPDX-License-Identifier: Apache-2.0
// Reading and collating batches of 64 MNIST-sized samples from a data set that holds tensors; the
// twin of loader.py.
#include <torch/torch.h>

#include <drivetrain/data.h>

#include "blocks.h"

namespace {

constexpr int64_t kSamples = 16384;
constexpr int kEpochs = 5;

// As torch::data::datasets::MNIST is: all images in one tensor, read one by one.
class Images : public torch::data::datasets::Dataset<Images> {
 public:
  torch::data::Example<> get(size_t index) override {
    return {images_[static_cast<int64_t>(index)], labels_[static_cast<int64_t>(index)]};
  }
  std::optional<size_t> size() const override { return kSamples; }

 private:
  at::Tensor images_ = torch::randn({kSamples, 1, 28, 28});
  at::Tensor labels_ = torch::randint(10, {kSamples});
};

// Samples a second over one epoch, its start included.
template <class Loader>
double epoch_rate(Loader& loader) {
  const double started = bench::seconds_now();
  int64_t count = 0;
  for (auto& batch : loader) count += batch.target.size(0);
  const double seconds = bench::seconds_now() - started;
  if (count != kSamples)
    throw std::runtime_error("bench_loader: " + std::to_string(count) + " samples instead of " +
                             std::to_string(kSamples));
  return static_cast<double>(count) / seconds;
}

bench::Side rates(const Images& images, const std::string& name, int num_workers) {
  drivetrain::DataLoader loader(images,
                                {.batch_size = 64, .shuffle = true, .num_workers = num_workers});
  bench::Side side{name, {}};
  epoch_rate(loader);
  for (int epoch = 0; epoch < kEpochs; ++epoch) side.samples.push_back(epoch_rate(loader));
  return side;
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const Images images;
  bench::report({rates(images, "no_workers", 0), rates(images, "2_workers", 2)});
}
