// SPDX-License-Identifier: Apache-2.0
// Moves are tried between the CPU and the meta device where no accelerator is at hand: what matters
// is that tensor objects, ties and names stay.
#include <torch/torch.h>

#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace drivetrain {
namespace {

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_parameter("first", torch::randn({4, 3}));
    second = register_parameter("second", first);                   // the same tensor
    rows = register_buffer("rows", first.detach().slice(0, 1, 3));  // its storage
    inner = register_module("inner", torch::nn::Linear(torch::nn::LinearOptions(3, 2).bias(false)));
  }
  torch::Tensor first, second, rows;
  torch::nn::Linear inner{nullptr};
};
TORCH_MODULE(Tied);

TEST(MoveModule, ToWhereItIsChangesNothing) {
  Tied module;
  const auto* data = module->first.data_ptr();
  CpuAccelerator().set_to_device(*module);
  EXPECT_EQ(module->first.data_ptr(), data);
  EXPECT_EQ(module->rows.data_ptr(), static_cast<const float*>(data) + 3);
}

TEST(MoveModule, KeepsTensorObjectsNamesAndTies) {
  Tied module;
  const auto* object = module->first.unsafeGetTensorImpl();
  move_module_(*module, c10::kMeta);
  EXPECT_EQ(module->first.unsafeGetTensorImpl(), object);
  EXPECT_TRUE(module->named_parameters()["first"].is_same(module->named_parameters()["second"]));
  for (const auto& item : module->named_parameters()) EXPECT_TRUE(item.value().is_meta());
  EXPECT_TRUE(module->rows.is_meta());
  EXPECT_TRUE(module->rows.is_alias_of(module->first));
  EXPECT_EQ(module->rows.storage_offset(), 3);
  EXPECT_TRUE(module->first.requires_grad());
}

TEST(MoveModule, TakesGradientsAlong) {
  Tied module;
  (module->first.sum() + module->inner->weight.sum()).backward();
  move_module_(*module, c10::kMeta);
  EXPECT_TRUE(module->first.grad().is_meta());
  EXPECT_TRUE(module->inner->weight.grad().is_meta());
}

TEST(MoveModule, MovesAListOfModules) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {torch::nn::Linear(2, 2).ptr(),
                                                             torch::nn::BatchNorm1d(2).ptr()};
  CpuAccelerator().set_to_device(modules);
  CpuAccelerator().set_to_device(std::vector<std::shared_ptr<torch::nn::Module>>{});
  EXPECT_TRUE(modules[1]->buffers()[0].is_cpu());
}

TEST(MoveModule, RefusesTensorsWithoutDataAndLeavesAllAsItWas) {
  Tied module;
  move_module_(*module->inner, c10::kMeta);
  EXPECT_ERROR(move_module_(*module, c10::kCPU), HardwareError, "could not be moved to cpu");
  EXPECT_TRUE(module->first.is_cpu());
  EXPECT_TRUE(module->inner->weight.is_meta());
}

TEST(MoveModule, RefusesWhatAGraphHoldsAndNamesIt) {
  Tied module;
  const auto loss = module->inner->weight.sum();
  EXPECT_ERROR(move_module_(*module, c10::kMeta), HardwareError,
               "parameter inner.weight of shape [2, 3] cannot change from cpu to meta: a graph "
               "still holds it");
  for (const auto& parameter : module->parameters()) EXPECT_TRUE(parameter.is_cpu());
  EXPECT_TRUE(module->rows.is_cpu());
}

TEST(MoveModule, KeepsViewsOfAnotherType) {
  torch::nn::Module module;
  const auto weight = module.register_parameter("weight", torch::ones({3, 2}));
  const auto pairs =
      module.register_buffer("pairs", torch::view_as_complex(weight.detach()).slice(0, 1));
  move_module_(module, c10::kMeta);
  EXPECT_TRUE(pairs.is_alias_of(weight));
  EXPECT_EQ(pairs.storage_offset(), 1);
  EXPECT_EQ(pairs.scalar_type(), torch::kComplexFloat);
}

TEST(MoveModule, MovesNamedTensorsThatBelongToNoModule) {
  const auto weight = torch::ones({3}, torch::requires_grad()), part = weight.detach().slice(0, 1);
  weight.sum().backward();
  move_tensors_({{"weight", weight}, {"part", part}, {"none", torch::Tensor()}}, c10::kMeta);
  EXPECT_TRUE(weight.is_meta() && weight.grad().is_meta());
  EXPECT_TRUE(part.is_alias_of(weight));
  const auto sparse = torch::eye(2).to_sparse();
  EXPECT_ERROR(move_tensors_({{"buffer table", sparse}}, c10::kMeta), HardwareError,
               "buffer table of shape [2, 2] cannot change from cpu to meta: it is not strided");
}

TEST(MoveModule, RefusesDevicesThatAreAbsent) {
  if (torch::cuda::is_available()) GTEST_SKIP();
  Tied module;
  EXPECT_ERROR(move_module_(*module, c10::kCUDA), HardwareError, "could not be moved to cuda");
}

}  // namespace
}  // namespace drivetrain
