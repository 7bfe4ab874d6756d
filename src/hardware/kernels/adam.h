// SPDX-License-Identifier: Apache-2.0
// The operation "adam": one step of Adam or AdamW on a list of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "hardware/kernels/ranges.h"

namespace drivetrain::hardware::kernels {

struct AdamStep {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW's decay; false: Adam's, added to the gradient (L2)
  bool bias_correction = true;
  bool amsgrad = false;
  double div_scale = 1;  // gradients are divided by it before anything else
};

// Lists of one length, the i-th of each belonging together and of one shape and strides.
struct AdamTensors {
  std::vector<at::Tensor> parameters, grads;
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;  // with amsgrad; else empty
  // Empty, or float16 or bfloat16 tensors that receive the new parameters, rounded: the copy that
  // the forward pass uses, beside float32 masters.
  std::vector<at::Tensor> copies;
  std::vector<int64_t> steps;  // counted from 1, this one included
};

// Updates parameters, moments and copies in place; gradients are only read. Arithmetic and moments
// are float32. (parameter, gradient) are (float32, any of the three), or of float16 or bfloat16
// each with itself or float32; copies go with float32 parameters. The types may differ from tensor
// to tensor. The arithmetic is that of torch::optim::AdamW and Adam, equal to them within 1e-6.
//
// **Throws HardwareError if** lists or shapes do not match, a type, device or layout is not served,
// or an option is out of range. Nothing has been changed then.
using AdamKernel = std::function<void(const AdamTensors& tensors, const AdamStep& step)>;

// The kernel over `loops`, for tensors in host memory without gaps. Bit-equal whatever the loops
// and the number of threads.
AdamKernel cpu_adam(const Loops& loops);

}  // namespace drivetrain::hardware::kernels
