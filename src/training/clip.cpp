// SPDX-License-Identifier: Apache-2.0
// Clipping of gradients, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_.
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <drivetrain/accelerator.h>
#include <drivetrain/backends.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <unordered_set>

#include "core/rank_label.h"
#include "core/text.h"
#include "hardware/kernels/grad_norm.h"
#include "training/refuse.h"

namespace drivetrain {

using training::refuse;

namespace {

// The gradients that have elements (the maximum of none has no value); a tied parameter's once.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const void*> seen;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined() && parameter.grad().numel() > 0 &&
        seen.insert(parameter.unsafeGetTensorImpl()).second)
      gradients.push_back(parameter.grad());
  return gradients;
}

at::Tensor total_norm(const std::vector<at::Tensor>& gradients, double norm_type) {
  // In 16 bits a norm would overflow (float16, at 65504) or keep three digits.
  std::vector<at::Tensor> wide, reduced, norms;
  for (const at::Tensor& gradient : gradients)
    (at::isReducedFloatingType(gradient.scalar_type()) ? reduced : wide).push_back(gradient);
  if (!wide.empty()) norms = at::_foreach_norm(wide, norm_type);
  if (!reduced.empty())
    for (at::Tensor& norm : at::_foreach_norm(reduced, norm_type, at::kFloat))
      norms.push_back(std::move(norm));
  for (at::Tensor& norm : norms) norm = norm.to(norms[0].device(), at::kFloat);
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void require_finite(const std::vector<at::Tensor>& parameters, const at::Tensor& norm) {
  if (std::isfinite(norm.item<double>())) return;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& grad = parameters[i].grad();
    if (!grad.defined() || at::isfinite(grad).all().item<bool>()) continue;
    throw std::runtime_error(core::str(
        core::rank_label(), "training: the gradient of parameter ", i, " of shape ", grad.sizes(),
        " is not finite, so the norm is ", norm.item<double>(),
        "; nothing was clipped; lower the learning rate or pass error_if_nonfinite = false"));
  }
  throw std::runtime_error(core::str(core::rank_label(), "training: the gradients are finite but ",
                                     "their norm is not; nothing was clipped"));
}

std::string backend_of(const at::Tensor& tensor) {
  return c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true);
}

// By the hardware room's kernel, which reads the gradients once and writes them only where they
// have to shrink. `check(norm)` may throw before that.
template <class Check>
at::Tensor clip_by_kernel(const std::vector<at::Tensor>& gradients, double max_norm, Check check) {
  using namespace kernels;  // NOLINT(google-build-using-namespace)
  const auto kernel =
      kernel_registry().load<GradNormKernel>("grad_norm", backend_of(gradients.front()));
  const at::Tensor norm = at::scalar_tensor(kernel(gradients, std::nullopt).norm(), at::kFloat);
  check(norm);
  const double factor = max_norm / (norm.item<double>() + 1e-6);
  if (!(factor >= 1)) kernel(gradients, factor);  // NaN shall spread
  return norm;
}

// On one device that has such a kernel, and what every kernel serves.
bool is_served_by_kernel(const std::vector<at::Tensor>& gradients, double norm_type) {
  const at::Device device = gradients.front().device();
  return norm_type == 2 &&
         kernels::kernel_registry().has("grad_norm", backend_of(gradients.front())) &&
         std::ranges::all_of(gradients, [&](const at::Tensor& gradient) {
           return gradient.device() == device && kernels::is_served_by_grad_norm(gradient);
         });
}

}  // namespace

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        double norm_type, bool error_if_nonfinite) const {
  if (!(max_norm >= 0))
    refuse(core::str("max_norm is ", max_norm, "; allowed: 0 or more; correct it"));
  if (!(norm_type > 0))
    refuse(core::str("norm_type is ", norm_type, "; allowed: above 0, infinity included"));
  at::NoGradGuard no_grad;
  const auto gradients =
      prepare_to_clip(parameters) ? gradients_of(parameters) : std::vector<at::Tensor>();
  if (gradients.empty()) return at::zeros({}, at::TensorOptions().device(device_));
  const auto check = [&](const at::Tensor& norm) {
    if (error_if_nonfinite) require_finite(parameters, norm);
  };
  if (is_served_by_kernel(gradients, norm_type)) return clip_by_kernel(gradients, max_norm, check);
  const at::Tensor norm = total_norm(gradients, norm_type);
  check(norm);
  // As upstream: the small term keeps the factor finite, and clamping avoids a branch on the
  // device.
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  at::_foreach_mul_(gradients, factor);
  return norm;
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters,
                                   double clip_value) const {
  if (!(clip_value >= 0))
    refuse(core::str("clip_value is ", clip_value, "; allowed: 0 or more; correct it"));
  at::NoGradGuard no_grad;
  const auto gradients =
      prepare_to_clip(parameters) ? gradients_of(parameters) : std::vector<at::Tensor>();
  if (gradients.empty()) return;
  at::_foreach_clamp_min_(gradients, -clip_value);
  at::_foreach_clamp_max_(gradients, clip_value);
}

}  // namespace drivetrain
