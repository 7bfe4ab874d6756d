// SPDX-License-Identifier: Apache-2.0
// TorchScript's fusion: which settings suit a device, and the first, slow runs of a scripted module
// before they are timed or served.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/DeviceType.h>

#include <vector>

namespace torch::jit {
struct Module;
}

namespace drivetrain::hardware {

// Settings of the process.
struct JitFusion {
  bool profiling = true;  // the first run records shapes and types, later ones are made for them
  bool on_cpu = false;    // elementwise chains become one kernel
  bool on_gpu = false;    // the same
  bool generate_code = false;  // by LibTorch's tensor-expression compiler
  bool operator==(const JitFusion&) const = default;
};

// On a GPU: profile, fuse, generate code. On anything else: profile only, since LibTorch's wheels
// have no LLVM, without which generated code is interpreted. (ColossalAI's set_jit_fusion_options
// switches fusion off everywhere with today's LibTorch: it relies on nvFuser, which is gone.)
JitFusion jit_fusion_for(c10::DeviceType type);

// on_gpu is false in a LibTorch without GPUs, whatever is set.
JitFusion current_jit_fusion();

// Settings in force for the life of the object. Modules keep what they were compiled to.
class ScopedJitFusion {
 public:
  explicit ScopedJitFusion(const JitFusion& fusion);
  ~ScopedJitFusion();
  ScopedJitFusion(const ScopedJitFusion&) = delete;
  ScopedJitFusion& operator=(const ScopedJitFusion&) = delete;

 private:
  JitFusion previous_;
};

struct WarmUp {
  int iterations = 10;   // 1 or more; profiling and both compilations are over after three
  bool backward = true;  // through every floating-point output that requires a gradient
};

// Runs module.forward(inputs) so that later runs with such inputs are at full speed. Parameters,
// buffers and gradients are left as they were; generators of random numbers advance.
//
// **Throws HardwareError if** iterations is below 1, or with backward no output requires a
// gradient. What the module throws passes through.
void warm_up(torch::jit::Module& module, const std::vector<c10::IValue>& inputs,
             const WarmUp& options = {});

}  // namespace drivetrain::hardware
