// SPDX-License-Identifier: Apache-2.0
#include "hardware/jit_fusion.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <drivetrain/error.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/codegen/fuser/interface.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <optional>
#include <utility>

#include "core/text.h"

namespace drivetrain::hardware {
namespace {

void set(const JitFusion& fusion) {
  torch::jit::getExecutorMode() = fusion.profiling;
  torch::jit::getProfilingMode() = fusion.profiling;
  torch::jit::overrideCanFuseOnCPU(fusion.on_cpu);
  torch::jit::overrideCanFuseOnGPU(fusion.on_gpu);
  torch::jit::setTensorExprFuserEnabled(fusion.generate_code);
}

// Every tensor in `value` that backward can start from.
void collect_roots(const c10::IValue& value, std::vector<at::Tensor>& roots) {
  if (value.isTensor()) {
    if (value.toTensor().defined() && value.toTensor().requires_grad())
      roots.push_back(value.toTensor());
    return;
  }
  if (!value.isTuple() && !value.isList() && !value.isGenericDict()) return;
  if (value.isTuple())
    for (const c10::IValue& each : value.toTupleRef().elements()) collect_roots(each, roots);
  if (value.isList())
    for (const c10::IValue& each : value.toListRef()) collect_roots(each, roots);
  if (value.isGenericDict())
    for (const auto& entry : value.toGenericDict()) collect_roots(entry.value(), roots);
}

// Buffers that a run changes (a batch norm's averages) get their values back.
class KeptBuffers {
 public:
  explicit KeptBuffers(const torch::jit::Module& module) {
    for (const at::Tensor& buffer : module.buffers()) kept_.emplace_back(buffer, buffer.clone());
  }
  ~KeptBuffers() {
    const at::NoGradGuard no_grad;
    for (auto& [buffer, values] : kept_) buffer.copy_(values);
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

// Gradients are returned to no one, so that those of the parameters stay.
void run_backward(const c10::IValue& output, const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> roots, ones;
  collect_roots(output, roots);
  if (roots.empty())
    throw HardwareError(
        "warm_up: no output of the module requires a gradient, so there is no backward to run; "
        "allowed: a module with trainable parameters, or inputs that require a gradient; pass "
        "backward = false");
  for (const at::Tensor& root : roots) ones.push_back(at::ones_like(root));
  torch::autograd::grad(roots, leaves, ones, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                        /*allow_unused=*/true);
}

std::vector<at::Tensor> leaves_of(const torch::jit::Module& module,
                                  const std::vector<c10::IValue>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const c10::IValue& input : inputs) collect_roots(input, leaves);
  for (const at::Tensor& parameter : module.parameters())
    if (parameter.requires_grad()) leaves.push_back(parameter);
  return leaves;
}

}  // namespace

JitFusion jit_fusion_for(c10::DeviceType type) {
  JitFusion fusion;
  if (type == c10::kCUDA || type == c10::kXPU || type == c10::kHIP)
    fusion.on_gpu = fusion.generate_code = true;
  return fusion;
}

JitFusion current_jit_fusion() {
  return {.profiling = torch::jit::getProfilingMode(),
          .on_cpu = torch::jit::canFuseOnCPU(),
          .on_gpu = torch::jit::canFuseOnGPU(),
          .generate_code = torch::jit::tensorExprFuserEnabled()};
}

ScopedJitFusion::ScopedJitFusion(const JitFusion& fusion) : previous_(current_jit_fusion()) {
  set(fusion);
}

ScopedJitFusion::~ScopedJitFusion() { set(previous_); }

void warm_up(torch::jit::Module& module, const std::vector<c10::IValue>& inputs,
             const WarmUp& options) {
  if (options.iterations < 1)
    throw HardwareError(core::str("warm_up: iterations is ", options.iterations,
                                  "; allowed: 1 or more; leave it at 10"));
  const KeptBuffers kept(module);
  const at::AutoGradMode grad_mode(options.backward);
  const auto leaves = leaves_of(module, inputs);
  for (int i = 0; i < options.iterations; ++i) {
    const c10::IValue output = module.forward(inputs);
    if (options.backward) run_backward(output, leaves);
  }
}

}  // namespace drivetrain::hardware
