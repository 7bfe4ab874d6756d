// SPDX-License-Identifier: Apache-2.0
#include "parallel/comm_hooks.h"

#include <drivetrain/error.h>

#include <utility>

#include "core/text.h"
#include "parallel/power_sgd.h"

namespace drivetrain::parallel {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw ConfigError("parallel", what); }

bool is_power_sgd(CommHookKind kind) {
  return kind == CommHookKind::power_sgd || kind == CommHookKind::batched_power_sgd;
}

void check_power_sgd(const PowerSgdOptions& options) {
  if (options.matrix_approximation_rank < 1)
    refuse(core::str("matrix_approximation_rank is ", options.matrix_approximation_rank,
                     "; allowed: at least 1; usual: 1 to 4"));
  if (options.start_iter < 0)
    refuse(core::str("start_iter is ", options.start_iter,
                     "; allowed: at least 0; usual: a tenth "
                     "of all steps"));
  if (!(options.min_compression_rate > 0))
    refuse(core::str("min_compression_rate is ", options.min_compression_rate,
                     "; allowed: above 0; usual: 2"));
  if (!(options.orthogonalization_epsilon >= 0))
    refuse(core::str("orthogonalization_epsilon is ", options.orthogonalization_epsilon,
                     "; allowed: at least 0; usual: 0 or 1e-8"));
}

void check(const DistributedDataParallelOptions& options) {
  if (options.custom_hook && options.comm_hook != CommHookKind::none)
    refuse("both comm_hook and custom_hook are set; allowed: one of them; leave comm_hook at none");
  if (options.comm_wrapper != CommWrapper::none && !is_power_sgd(options.comm_hook))
    refuse(
        "comm_wrapper is set without PowerSGD, which alone it converts for; allowed: with "
        "power_sgd and batched_power_sgd; set comm_hook to fp16 or bf16 instead");
  if (is_power_sgd(options.comm_hook)) return check_power_sgd(options.power_sgd);
  if (options.power_sgd != PowerSgdOptions())
    refuse(
        "options of PowerSGD are set without it; allowed: with power_sgd and batched_power_sgd; "
        "set "
        "comm_hook to one of these, or leave power_sgd as it is");
}

std::shared_ptr<CommHook> make_inner(const DistributedDataParallelOptions& options) {
  if (options.custom_hook) return options.custom_hook;
  if (options.comm_hook == CommHookKind::power_sgd)
    return std::make_shared<PowerSgdHook>(options.power_sgd);
  if (options.comm_hook == CommHookKind::batched_power_sgd)
    return std::make_shared<BatchedPowerSgdHook>(options.power_sgd);
  return std::make_shared<AllReduceHook>();
}

}  // namespace

std::shared_ptr<CommHook> make_comm_hook(const DistributedDataParallelOptions& options) {
  check(options);
  std::shared_ptr<CommHook> hook = make_inner(options);
  if (options.comm_hook == CommHookKind::fp16 || options.comm_wrapper == CommWrapper::fp16)
    return std::make_shared<ConvertingHook>(at::kHalf, std::move(hook));
  if (options.comm_hook == CommHookKind::bf16 || options.comm_wrapper == CommWrapper::bf16)
    return std::make_shared<ConvertingHook>(at::kBFloat16, std::move(hook));
  return hook;
}

GradientChunk converted(const GradientChunk& chunk, at::ScalarType dtype) {
  GradientChunk copy = chunk;
  copy.flat = chunk.flat.to(dtype);
  copy.used = copy.flat.narrow(0, chunk.used.storage_offset(), chunk.used.numel());
  for (at::Tensor& gradient : copy.gradients)
    gradient =
        copy.flat.as_strided(gradient.sizes(), gradient.strides(), gradient.storage_offset());
  return copy;
}

CommHook::Finish AllReduceHook::reduce(const World& world, const GradientChunk& chunk) {
  return
      [pending = world.all_reduce_async(chunk.flat, ReduceOp::sum)]() mutable { pending.wait(); };
}

ConvertingHook::ConvertingHook(at::ScalarType dtype, std::shared_ptr<CommHook> inner)
    : dtype_(dtype), inner_(std::move(inner)) {}

CommHook::Finish ConvertingHook::reduce(const World& world, const GradientChunk& chunk) {
  if (c10::elementSize(chunk.flat.scalar_type()) <= c10::elementSize(dtype_))
    return inner_->reduce(world, chunk);
  const GradientChunk copy = converted(chunk, dtype_);
  return [to = chunk.flat, from = copy.flat, finish = inner_->reduce(world, copy)]() {
    finish();
    to.copy_(from);
  };
}

void ConvertingHook::chunks_changed() { inner_->chunks_changed(); }

}  // namespace drivetrain::parallel
