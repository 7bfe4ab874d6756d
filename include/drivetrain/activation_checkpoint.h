// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing (Chen et al. 2016, 1604.06174): a part of a forward keeps its inputs
// only, and is run again when backward comes to it. Memory for time.
//
//   auto y = drivetrain::activation_checkpoint([&](const at::Tensor& x) { return block->forward(x);
//   }, x);
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/nested.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace drivetrain {

struct ActivationCheckpointOptions {
  // Random numbers of the second run are those of the first. Off: faster, for parts that draw none.
  bool preserve_rng_state = true;
};

namespace detail {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

std::vector<at::Tensor> activation_checkpoint(const TensorFunction& function,
                                              const std::vector<at::Tensor>& inputs,
                                              const ActivationCheckpointOptions& options);

}  // namespace detail

// function(inputs...), whose intermediate results are not kept for backward. Inputs are nested
// values (nested.h), and so is the result; gradients reach the inputs, and the parameters that the
// function uses, as without. Scopes may nest. In the second run autocast is as in the first.
//
// Requires: the function does the same when it runs again, whatever happened in between; what it
// uses lives until backward (so it should hold modules, not refer to local ones); batch
// normalisation counts each batch twice. Tensors that it makes leave it in its result alone.
// Second derivatives are not supported: backward with create_graph throws std::invalid_argument.
template <class Function, class... Inputs>
auto activation_checkpoint(const ActivationCheckpointOptions& options, Function function,
                           const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Function&, const Inputs&...>>;
  const std::tuple<Inputs...> all(inputs...);
  auto form =
      std::make_shared<std::optional<Result>>();  // What the first run gave, kept no longer.
  const detail::TensorFunction run = [function = std::move(function), first = std::weak_ptr(form),
                                      without = map_tensors(all, [](const at::Tensor&) {
                                        return at::Tensor();
                                      })](const std::vector<at::Tensor>& tensors) mutable {
    Result result = std::apply(function, drivetrain::unflatten(without, tensors));
    std::vector<at::Tensor> outputs = drivetrain::flatten(result);
    if (const auto kept = first.lock()) kept->emplace(std::move(result));
    return outputs;
  };
  const auto outputs = detail::activation_checkpoint(run, drivetrain::flatten(all), options);
  return drivetrain::unflatten(std::move(**form), outputs);
}

template <class Function, class... Inputs>
  requires(!std::is_same_v<std::decay_t<Function>, ActivationCheckpointOptions>)
auto activation_checkpoint(Function function, const Inputs&... inputs) {
  return activation_checkpoint(ActivationCheckpointOptions{}, std::move(function), inputs...);
}

}  // namespace drivetrain
