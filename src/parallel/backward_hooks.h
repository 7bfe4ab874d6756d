// SPDX-License-Identifier: Apache-2.0
// The three things that must be known of LibTorch's autograd engine: that a gradient has been
// accumulated, that a backward has ended, and that it has failed.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace drivetrain::parallel {

// A hook on a parameter, for as long as it lives.
class AccumulationHook {
 public:
  virtual ~AccumulationHook() = default;

  // False once LibTorch has replaced what the hook hangs on: it does so when a parameter is moved
  // or converted, even if the parameter comes back.
  virtual bool is_attached() const = 0;
};

// Calls after(true) on the engine's thread each time a backward has accumulated into the
// parameter's gradient, and after(false) where one reached it but had nothing to accumulate. An
// exception in it ends the backward. Requires: a leaf that requires gradients.
std::unique_ptr<AccumulationHook> after_accumulation(const at::Tensor& parameter,
                                                     std::function<void(bool)> after);

// Called within a backward: calls `at_end` when it has ended, or, where it runs inside a node of
// another (as recomputed activations do), when the outermost one has. If it fails, `at_end` is
// never called, and `failed` is, when the engine drops the backward or its graph; it must not
// throw.
void call_at_end_of_backward(std::function<void()> at_end, std::function<void()> failed);

// Whether the calling thread is within a backward.
bool is_in_backward();

}  // namespace drivetrain::parallel
