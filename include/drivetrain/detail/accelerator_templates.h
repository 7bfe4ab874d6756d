// SPDX-License-Identifier: Apache-2.0
// The templates of accelerator.h, which includes this.
#pragma once

#include <drivetrain/accelerator.h>

namespace drivetrain {

template <ModuleHolder M>
Prepared<M> Accelerator::prepare(M model) {
  detail::ForwardScope scope = adopt(*model);
  return Prepared<M>(std::move(model), std::move(scope));
}

template <class S>
  requires requires(S& module) { module.get_method("forward"); }
PreparedScript<S> Accelerator::prepare(S module) {
  Named parameters, buffers;
  for (const auto& entry : module.named_parameters())
    parameters.emplace_back(entry.name, entry.value);
  for (const auto& entry : module.named_buffers()) buffers.emplace_back(entry.name, entry.value);
  return PreparedScript<S>(module, adopt(parameters, buffers));
}

template <class T>
std::vector<T> Accelerator::split_between_processes(const std::vector<T>& inputs,
                                                    bool apply_padding) const {
  const Share share = share_of(static_cast<int64_t>(inputs.size()), apply_padding);
  std::vector<T> mine(inputs.begin() + share.begin, inputs.begin() + share.end);
  // Never inserts where there is nothing to repeat: padding is 0 then.
  if (share.padding > 0) mine.insert(mine.end(), share.padding, inputs[share.end - 1]);
  return mine;
}

template <class Key, class T>
std::map<Key, T> Accelerator::split_between_processes(const std::map<Key, T>& inputs,
                                                      bool apply_padding) const {
  const auto length = [](const T& value) {
    if constexpr (std::derived_from<T, at::TensorBase>)
      return static_cast<int64_t>(value.size(0));
    else
      return static_cast<int64_t>(value.size());
  };
  std::map<Key, T> mine;
  for (const auto& [key, value] : inputs) {
    check_equal_lengths(length(inputs.begin()->second), length(value));
    mine.emplace(key, split_between_processes(value, apply_padding));
  }
  return mine;
}

template <class Fn>
auto Accelerator::first_here(bool is_first, Fn&& fn) const {
  // An exception of the first rank reaches the others as a CommError at their barrier.
  if (!is_first) wait_for_everyone();
  if constexpr (std::is_void_v<std::invoke_result_t<Fn>>) {
    fn();
    if (is_first) wait_for_everyone();
  } else {
    auto result = fn();
    if (is_first) wait_for_everyone();
    return result;
  }
}

template <class Fn>
auto Accelerator::run_if(bool runs_here, Fn&& fn) {
  using Result = std::invoke_result_t<Fn>;
  if constexpr (std::is_void_v<Result>) {
    if (runs_here) fn();
    return runs_here;
  } else {
    return runs_here ? std::optional<Result>(fn()) : std::nullopt;
  }
}

template <class Object>
void Accelerator::release(Object& object) {
  if constexpr (requires { object.reset(); })
    object.reset();
  else
    object = nullptr;
}

}  // namespace drivetrain
