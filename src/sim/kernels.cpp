// SPDX-License-Identifier: Apache-2.0
// Operations that LibTorch leaves to each accelerator: convolutions, and those that its CPU kernels
// draw random numbers in, or that only accelerators have.
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <tuple>
#include <vector>

#include "sim/operation.h"
#include "sim/tensors.h"

namespace drivetrain::sim {

using at::IntArrayRef;
using at::Tensor;

namespace {

Tensor or_undefined(const std::optional<Tensor>& tensor) { return tensor.value_or(Tensor()); }

std::optional<Tensor> if_defined(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

// --- convolution

struct Convolution {
  std::vector<int64_t> stride, padding, dilation;
  bool transposed;
  std::vector<int64_t> output_padding;
  int64_t groups;

  std::vector<int64_t> output_sizes(IntArrayRef input, IntArrayRef weight) const {
    std::vector<int64_t> sizes = {input[0], transposed ? weight[1] * groups : weight[0]};
    for (size_t d = 2; d < input.size(); ++d) {
      const size_t i = d - 2;
      const int64_t reach = dilation[i] * (weight[d] - 1);
      sizes.push_back(transposed ? (input[d] - 1) * stride[i] - 2 * padding[i] + reach +
                                       output_padding[i] + 1
                                 : (input[d] + 2 * padding[i] - reach - 1) / stride[i] + 1);
    }
    return sizes;
  }
};

// Channels last if either is, as LibTorch's CPU kernels choose.
at::MemoryFormat format_of(const Tensor& input, const Tensor& weight) {
  const auto format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  const Convolution c{stride.vec(), padding.vec(),        dilation.vec(),
                      transposed,   output_padding.vec(), groups};
  const auto shape = Shape::contiguous(
      input.scalar_type(), c.output_sizes(input.sizes(), weight.sizes()), format_of(input, weight));
  return launch(
      "aten::convolution", {input, weight, or_undefined(bias)}, {shape},
      [c](const std::vector<Tensor>& given) -> std::vector<Tensor> {
        return {at::convolution(given[0], given[1], if_defined(given[2]), c.stride, c.padding,
                                c.dilation, c.transposed, c.output_padding, c.groups)};
      })[0];
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input,
                                                        const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding,
                                                        int64_t groups, std::array<bool, 3> mask) {
  const Convolution c{stride.vec(), padding.vec(),        dilation.vec(),
                      transposed,   output_padding.vec(), groups};
  const auto dtype = grad.scalar_type();
  const auto format = format_of(input, weight);
  const int64_t channels = grad.size(1);
  std::vector<Shape> shapes(3);
  if (mask[0]) shapes[0] = Shape::contiguous(dtype, input.sizes().vec(), format);
  if (mask[1]) shapes[1] = Shape::contiguous(dtype, weight.sizes().vec(), format);
  if (mask[2]) shapes[2] = Shape::contiguous(dtype, {channels});
  const auto made =
      launch("aten::convolution_backward", {grad, input, weight}, shapes,
             [c, mask, channels](const std::vector<Tensor>& given) -> std::vector<Tensor> {
               auto [first, second, third] = at::convolution_backward(
                   given[0], given[1], given[2], IntArrayRef{channels}, c.stride, c.padding,
                   c.dilation, c.transposed, c.output_padding, c.groups, mask);
               return {first, second, third};
             });
  return {made[0], made[1], made[2]};
}

// --- dropout: the CPU's kernel would draw from the CPU's generator

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  const double kept = 1.0 - p;
  Tensor mask = at::empty_like(input, at::kBool).bernoulli_(kept);
  return {input.mul(mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept), mask};
}

// --- recurrent cells. LibTorch calls these on accelerators; the formulas are those of its CUDA
// kernels (aten/src/ATen/native/cuda/RNN.cu).

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates.add(*bias) : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const auto gates =
      with_bias(input_gates, input_bias).add(with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(),
               out = gates[3].sigmoid();
  const Tensor cy = forget.mul(cx).add_(in.mul(cell));
  return {out.mul(cy.tanh()), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy && grad_hy->defined(), has_cy = grad_cy && grad_cy->defined();
  if (!has_hy && !has_cy) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto through_sigmoid = [](const Tensor& grad, const Tensor& y) {
    return grad.mul(y.neg().add_(1)).mul_(y);
  };
  const Tensor grad_h = has_hy ? *grad_hy : at::zeros_like(cx);
  const Tensor tanh_cy = cy.tanh();
  Tensor grad_c = grad_h.mul(out).mul_(tanh_cy.square().neg_().add_(1));
  if (has_cy) grad_c.add_(*grad_cy);
  const Tensor grads =
      at::cat({through_sigmoid(grad_c.mul(cell), in), through_sigmoid(grad_c.mul(cx), forget),
               grad_c.mul(in).mul_(cell.square().neg_().add_(1)),
               through_sigmoid(grad_h.mul(tanh_cy), out)},
              1);
  return {grads, grad_c.mul(forget), has_bias ? grads.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = input[0].add(hidden[0]).sigmoid_(), in = input[1].add(hidden[1]).sigmoid_(),
               fresh = input[2].add(reset.mul(hidden[2])).tanh_();
  return {fresh.add(in.mul(hx.sub(fresh))), at::cat({reset, in, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &reset = saved[0], &in = saved[1], &fresh = saved[2], &hx = saved[3],
               &hidden = saved[4];
  const auto rest = [](const Tensor& y) { return y.neg().add_(1); };
  const Tensor grad_in = grad.mul(hx.sub(fresh)).mul_(rest(in)).mul_(in);
  const Tensor grad_fresh = grad.mul(rest(in)).mul_(rest(fresh.square()));
  const Tensor grad_reset = grad_fresh.mul(hidden).mul_(rest(reset)).mul_(reset);
  const Tensor of_input = at::cat({grad_reset, grad_in, grad_fresh}, 1);
  const Tensor of_hidden = at::cat({grad_reset, grad_in, grad_fresh.mul(reset)}, 1);
  return {of_input, of_hidden, grad.mul(in), has_bias ? of_input.sum(0) : Tensor(),
          has_bias ? of_hidden.sum(0) : Tensor()};
}

}  // namespace

void register_kernels(torch::Library& aten) {
  aten.impl("convolution_overrideable", convolution);
  aten.impl("convolution_backward_overrideable", convolution_backward);
  aten.impl("native_dropout", native_dropout);
  aten.impl("_thnn_fused_lstm_cell", lstm_cell);
  aten.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  aten.impl("_thnn_fused_gru_cell", gru_cell);
  aten.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace drivetrain::sim
