// SPDX-License-Identifier: Apache-2.0
// Which operations autocast casts for these devices: LibTorch's lists, as for CUDA.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>

#include "sim/tensors.h"

namespace drivetrain::sim {

// The lists are written in these names.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

#define DRIVETRAIN_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define DRIVETRAIN_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define DRIVETRAIN_FP32_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define DRIVETRAIN_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

void register_autocast(torch::Library& m) {  // the macros call it m
  AT_FORALL_LOWER_PRECISION_FP(DRIVETRAIN_LOWER)
  AT_FORALL_FP32(DRIVETRAIN_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(DRIVETRAIN_FP32_SET_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(DRIVETRAIN_PROMOTE)
}

}  // namespace drivetrain::sim
