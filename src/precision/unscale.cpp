// SPDX-License-Identifier: Apache-2.0
#include "precision/unscale.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <drivetrain/backends.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "hardware/kernels/grad_norm.h"

namespace drivetrain::precision {
namespace {

// Gradients that one call serves, and where they are in the list.
struct Part {
  std::vector<at::Tensor> gradients;
  std::vector<size_t> places;

  void add(const at::Tensor& gradient, size_t place) {
    gradients.push_back(gradient);
    places.push_back(place);
  }
};

std::optional<size_t> unscale_by_kernel(const Part& part, double factor) {
  if (part.gradients.empty()) return std::nullopt;
  using kernels::GradNormKernel;
  const auto kernel = kernels::kernel_registry().load<GradNormKernel>("grad_norm", "cpu");
  const kernels::GradNorm found = kernel(part.gradients, factor);
  if (!found.found_inf) return std::nullopt;
  return part.places[static_cast<size_t>(found.first_nonfinite)];
}

// LibTorch's own, for one device and type. Which one it was is looked for only if there is one.
std::optional<size_t> unscale_by_libtorch(const Part& part, double factor) {
  const auto options = part.gradients.front().options().dtype(at::kFloat);
  at::Tensor found_inf = at::zeros({}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(part.gradients, found_inf,
                                                 at::full({}, factor, options));
  if (found_inf.item<float>() == 0) return std::nullopt;
  for (size_t i = 0; i < part.gradients.size(); ++i)
    if (!at::isfinite(part.gradients[i]).all().item<bool>()) return part.places[i];
  return part.places.front();
}

std::optional<size_t> first_of(std::optional<size_t> a, std::optional<size_t> b) {
  if (!a || !b) return a ? a : b;
  return std::min(a, b);
}

}  // namespace

std::optional<size_t> unscale(const std::vector<at::Tensor>& gradients, double scale) {
  const at::NoGradGuard no_grad;
  Part on_host;
  std::map<std::pair<std::string, at::ScalarType>, Part> others;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor values = gradients[i].is_sparse() ? gradients[i]._values() : gradients[i];
    if (values.numel() == 0) continue;
    if (values.is_cpu() && kernels::is_served_by_grad_norm(values))
      on_host.add(values, i);
    else
      others[{values.device().str(), values.scalar_type()}].add(values, i);
  }
  std::optional<size_t> first = unscale_by_kernel(on_host, 1 / scale);
  for (const auto& [key, part] : others)
    first = first_of(first, unscale_by_libtorch(part, 1 / scale));
  return first;
}

}  // namespace drivetrain::precision
