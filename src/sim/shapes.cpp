// SPDX-License-Identifier: Apache-2.0
#include "sim/shapes.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

#include <map>

namespace drivetrain::sim {

using at::Tensor;
using c10::IValue;

namespace {

using Arguments = std::vector<IValue>;
using Shapes = std::vector<Shape>;

Tensor tensor_at(const Arguments& arguments, size_t i) {
  return arguments[i].isTensor() ? arguments[i].toTensor() : Tensor();
}

// Of the input, in the memory format that LibTorch's CPU kernels give their result.
Shape like(const Tensor& input) {
  return Shape::contiguous(input.scalar_type(), input.sizes().vec(), input.suggest_memory_format());
}

// The dtype of statistics: that of the parameters where there are any (they may be wider).
at::ScalarType wider(const Tensor& input, const Tensor& parameter) {
  return parameter.defined() ? parameter.scalar_type() : input.scalar_type();
}

Shape masked(const IValue& mask, size_t i, Shape shape) {
  return mask.toBoolList().get(i) ? std::move(shape) : Shape{};
}

Shape of_parameter(const Tensor& parameter, const Tensor& input, int64_t count) {
  return Shape::contiguous(wider(input, parameter), {count});
}

// input, weight, bias, running_mean, running_var, training, momentum, eps
Shapes batch_norm(const Arguments& a) {
  const Tensor input = tensor_at(a, 0);
  const int64_t channels = a[5].toBool() ? input.size(1) : 0;
  const Tensor weight = tensor_at(a, 1), mean = tensor_at(a, 3);
  const Shape statistic = of_parameter(weight.defined() ? weight : mean, input, channels);
  return {like(input), statistic, statistic};
}

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask
Shapes batch_norm_backward(const Arguments& a) {
  const Tensor input = tensor_at(a, 1), weight = tensor_at(a, 2);
  const Shape parameter = of_parameter(weight, input, input.size(1));
  return {masked(a[9], 0, like(input)), masked(a[9], 1, parameter), masked(a[9], 2, parameter)};
}

// input, normalized_shape, weight, bias, eps
Shapes layer_norm(const Arguments& a) {
  const Tensor input = tensor_at(a, 0);
  auto sizes = input.sizes().vec();
  const size_t normalized = a[1].toIntVector().size();
  for (size_t i = sizes.size() - normalized; i < sizes.size(); ++i) sizes[i] = 1;
  const Shape statistic = Shape::contiguous(wider(input, tensor_at(a, 2)), sizes);
  return {Shape::contiguous(input.scalar_type(), input.sizes().vec()), statistic, statistic};
}

// grad_out, input, normalized_shape, mean, rstd, weight, bias, mask
Shapes layer_norm_backward(const Arguments& a) {
  const Tensor input = tensor_at(a, 1), weight = tensor_at(a, 5);
  const Shape parameter = Shape::contiguous(wider(input, weight), a[2].toIntVector());
  return {masked(a[7], 0, Shape::contiguous(input.scalar_type(), input.sizes().vec())),
          masked(a[7], 1, parameter), masked(a[7], 2, parameter)};
}

// grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
Shapes embedding_backward(const Arguments& a) {
  const Tensor grad = tensor_at(a, 0);
  return {Shape::contiguous(grad.scalar_type(), {a[2].toInt(), grad.size(-1)})};
}

// self, dim, index
Shapes index_select(const Arguments& a) {
  const Tensor self = tensor_at(a, 0);
  auto sizes = self.sizes().vec();
  if (!sizes.empty())
    sizes[static_cast<size_t>(c10::maybe_wrap_dim(a[1].toInt(), self.dim()))] =
        tensor_at(a, 2).numel();
  return {Shape::contiguous(self.scalar_type(), sizes)};
}

// One operation on each number of the first argument.
Shapes elementwise(const Arguments& a) {
  const Tensor self = tensor_at(a, 0);
  return {{self.scalar_type(), self.sizes().vec(),
           at::infer_dense_strides(self.sizes(), self.strides())}};
}

// grad_output, self, target ...
Shapes loss_backward(const Arguments& a) {
  const Tensor self = tensor_at(a, 1);
  return {Shape::contiguous(self.scalar_type(), self.sizes().vec())};
}

}  // namespace

std::optional<Shapes> known_shapes(const std::string& name, const Arguments& arguments) {
  static const std::map<std::string, Shapes (*)(const Arguments&)> known = {
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::index_select", index_select},
      {"aten::hardtanh", elementwise},
      {"aten::mse_loss_backward", loss_backward},
      {"aten::native_dropout_backward", elementwise},
      {"aten::relu", elementwise},
      {"aten::embedding_dense_backward", embedding_backward},
  };
  const auto found = known.find(name);
  if (found == known.end()) return std::nullopt;
  return found->second(arguments);
}

}  // namespace drivetrain::sim
