// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "hardware/jit_fusion.h"

namespace drivetrain::hardware {
namespace {

// Scales by a parameter, and counts its runs in a buffer.
torch::jit::Module scripted(bool trainable) {
  torch::jit::Module module("Scaled");
  module.register_parameter("scale", torch::full({3}, 2.0).requires_grad_(trainable),
                            /*is_buffer=*/false);
  module.register_buffer("runs", torch::zeros({1}));
  module.define(R"(
    def forward(self, x):
        self.runs.add_(1)
        y = torch.tanh(x * self.scale) * 0.5 + x
        return y, [y * 2]
  )");
  return module;
}

torch::jit::GraphExecutorState state_of(torch::jit::Module& module) {
  return module.get_method("forward").get_executor().getDebugState();
}

TEST(JitFusion, OfACpuProfilesOnly) {
  const JitFusion fusion = jit_fusion_for(c10::kCPU);
  EXPECT_EQ(fusion, JitFusion{});
  EXPECT_TRUE(fusion.profiling);
  EXPECT_FALSE(fusion.on_cpu);
  EXPECT_FALSE(fusion.generate_code);
}

TEST(JitFusion, OfAGpuGeneratesCode) {
  for (const auto type : {c10::kCUDA, c10::kXPU}) {
    const JitFusion fusion = jit_fusion_for(type);
    EXPECT_TRUE(fusion.on_gpu && fusion.generate_code && fusion.profiling);
    EXPECT_FALSE(fusion.on_cpu);
  }
}

TEST(JitFusion, IsInForceForAScope) {
  const JitFusion before = current_jit_fusion();
  for (const bool on : {false, true}) {
    // LibTorch without a GPU says that it cannot fuse on one, whatever is set.
    const JitFusion wanted = {on, !on, /*on_gpu=*/false, on};
    {
      const ScopedJitFusion scope(wanted);
      EXPECT_EQ(current_jit_fusion(), wanted);
    }
    EXPECT_EQ(current_jit_fusion(), before);
  }
}

// A profiled module has an execution plan once it has been run.
TEST(WarmUp, LeavesAPlanAndTheModuleAsItWas) {
  auto module = scripted(true);
  module.attr("scale").toTensor().mutable_grad() = torch::full({3}, 7.0);
  const ScopedJitFusion scope(jit_fusion_for(c10::kCPU));
  EXPECT_ERROR(state_of(module), c10::Error, "optimized_plan_");  // none yet
  warm_up(module, {torch::ones({2, 3})});
  EXPECT_FALSE(state_of(module).execution_plans.empty());
  EXPECT_TRUE(torch::equal(module.attr("scale").toTensor(), torch::full({3}, 2.0)));
  EXPECT_TRUE(torch::equal(module.attr("scale").toTensor().grad(), torch::full({3}, 7.0)));
  EXPECT_EQ(module.attr("runs").toTensor().item<float>(), 0);
}

TEST(WarmUp, RunsForwardAsOftenAsAsked) {
  int runs = 0;
  auto module = scripted(true);
  const auto x = torch::ones({2, 3}, torch::requires_grad());
  x.register_hook([&](const at::Tensor&) { ++runs; });
  warm_up(module, {x}, {.iterations = 4});
  EXPECT_EQ(runs, 4);
  warm_up(module, {x}, {.iterations = 2, .backward = false});
  EXPECT_EQ(runs, 4);
  EXPECT_FALSE(x.grad().defined());
}

TEST(WarmUp, RefusesWhatItCannotRun) {
  auto frozen = scripted(false);
  EXPECT_ERROR(warm_up(frozen, {torch::ones({2, 3})}), HardwareError,
               "warm_up: no output of the module requires a gradient, so there is no backward to "
               "run; allowed: a module with trainable parameters");
  EXPECT_ERROR(warm_up(frozen, {torch::ones({2, 3})}, {.iterations = 0}), HardwareError,
               "warm_up: iterations is 0; allowed: 1 or more");
  warm_up(frozen, {torch::ones({2, 3})}, {.backward = false});
}

}  // namespace
}  // namespace drivetrain::hardware
