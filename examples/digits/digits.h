// SPDX-License-Identifier: Apache-2.0
// 5,000 handwritten digits of MNIST, 500 of each, from a gzipped table of 785 columns: 784 grey
// values in rows of 28, 0 to 255, and the digit.
#pragma once

#include <torch/types.h>

#include <string>

struct Digits {
  torch::Tensor images;  // (N, 1, 28, 28) float32, mean 0 and deviation 1 over MNIST
  torch::Tensor labels;  // (N) int64
};

// Throws std::runtime_error that names the file, and the line if one is wrong.
Digits read_digits(const std::string& path);

// Every fifth digit for testing, the others for training.
struct Split {
  Digits train;  // 4,000 of 5,000
  Digits test;
};
Split split(const Digits& digits);
