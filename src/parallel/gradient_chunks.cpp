// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_chunks.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <drivetrain/error.h>

#include <utility>

#include "core/text.h"

namespace drivetrain::parallel {
namespace {

// Strides of a gradient: its parameter's, or row-major where those leave gaps. The optimizers'
// fused kernels and the accumulation of gradients are fast on these.
std::vector<int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  std::vector<int64_t> strides(static_cast<size_t>(parameter.dim()), 1);
  for (size_t i = strides.size(); i > 1; --i)
    strides[i - 2] = strides[i - 1] * std::max<int64_t>(parameter.sizes()[i - 1], 1);
  return strides;
}

// Not a view as autograd understands it: zero_grad may detach it in place.
at::Tensor make_window(const at::Tensor& flat, const at::Tensor& parameter, int64_t offset) {
  const auto dtype = parameter.is_complex() ? parameter.scalar_type() : flat.scalar_type();
  return at::empty({0}, flat.options().dtype(dtype))
      .set_(flat.storage(), offset, parameter.sizes(), gradient_strides(parameter));
}

// The memory of `window` as the hooks see it: real numbers.
at::Tensor make_real_window(const at::Tensor& flat, const at::Tensor& window) {
  if (!window.is_complex()) return window;
  std::vector<int64_t> sizes = window.sizes().vec();
  std::vector<int64_t> strides = window.strides().vec();
  for (int64_t& stride : strides) stride *= 2;
  sizes.push_back(2);
  strides.push_back(1);
  return at::empty({0}, flat.options())
      .set_(flat.storage(), window.storage_offset() * 2, sizes, strides);
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.layout() == at::kStrided && a.is_alias_of(b) &&
                          a.dtype() == b.dtype() && a.storage_offset() == b.storage_offset() &&
                          a.sizes() == b.sizes() && a.strides() == b.strides());
}

}  // namespace

GradientChunks::GradientChunks(World world, NamedTensors parameters, ChunkCaps caps,
                               std::shared_ptr<CommHook> hook, bool float32_gradients)
    : world_(std::move(world)),
      parameters_(std::move(parameters)),
      caps_(caps),
      hook_(std::move(hook)),
      float32_gradients_(float32_gradients),
      places_(parameters_.size()),
      has_arrived_(parameters_.size()),
      has_gradient_(parameters_.size()) {}

SlotSpec GradientChunks::spec_of(const at::Tensor& parameter) const {
  const at::ScalarType own = parameter.scalar_type();
  return {.numel = parameter.numel(),
          .dtype = float32_gradients_ && at::isReducedFloatingType(own) ? at::kFloat : own,
          .device = parameter.device()};
}

void GradientChunks::set_order(std::vector<size_t> order) {
  std::vector<SlotSpec> specs;
  types_.clear();
  for (const auto& [name, parameter] : parameters_) {
    specs.push_back(spec_of(parameter));
    types_.push_back(parameter.scalar_type());
  }
  order_ = std::move(order);
  layouts_ = lay_out_chunks(specs, order_, caps_);
  chunks_.clear();
  for (const ChunkLayout& layout : layouts_) {
    const size_t index = chunks_.size();
    for (size_t slot = 0; slot < layout.parameters.size(); ++slot)
      places_[layout.parameters[slot]] = {.chunk = index, .slot = slot};
    chunks_.push_back(make_chunk(layout, index));
  }
  hook_->chunks_changed();
}

GradientChunks::Chunk GradientChunks::make_chunk(const ChunkLayout& layout, size_t index) const {
  const int64_t reals = layout.numel * (c10::isComplexType(layout.dtype) ? 2 : 1);
  const auto num_flags = static_cast<int64_t>(layout.parameters.size());
  const auto options =
      at::TensorOptions().device(layout.device).dtype(c10::toRealValueType(layout.dtype));
  Chunk chunk;
  GradientChunk& content = chunk.content;
  content.flat = at::zeros({reals + num_flags}, options);
  content.used = content.flat.narrow(0, reals, num_flags);
  content.parameters = layout.parameters;
  content.index = index;
  content.is_last = index + 1 == layouts_.size();
  for (size_t slot = 0; slot < layout.parameters.size(); ++slot) {
    const at::Tensor& parameter = parameters_[layout.parameters[slot]].second;
    chunk.windows.push_back(make_window(content.flat, parameter, layout.offsets[slot]));
    content.gradients.push_back(make_real_window(content.flat, chunk.windows.back()));
  }
  chunk.num_missing = layout.parameters.size();
  return chunk;
}

at::Tensor& GradientChunks::window(size_t parameter) {
  const Place& place = places_[parameter];
  return chunks_[place.chunk].windows[place.slot];
}

const at::Tensor& GradientChunks::window(size_t parameter) const {
  const Place& place = places_[parameter];
  return chunks_[place.chunk].windows[place.slot];
}

void GradientChunks::arrive(size_t parameter, double scale) {
  if (has_arrived_[parameter] != 0)
    throw ConfigError("parallel",
                      core::str("the gradient of \"", parameters_[parameter].first,
                                "\" arrived twice in one backward; allowed: once, as its reduction "
                                "may be under way; run all but the last nested backward that "
                                "reaches it without synchronisation (no_sync)"));
  contribute(parameter, scale);
  has_arrived_[parameter] = 1;
  arrivals_.push_back(parameter);
  --chunks_[places_[parameter].chunk].num_missing;
  while (num_launched_ < chunks_.size() && chunks_[num_launched_].num_missing == 0) launch_next();
}

void GradientChunks::launch_rest(double scale) {
  for (; num_launched_ < chunks_.size(); launch_next())
    for (const size_t parameter : chunks_[num_launched_].content.parameters)
      if (has_arrived_[parameter] == 0) contribute(parameter, scale);
}

void GradientChunks::launch_zeros() {
  for (; num_launched_ < chunks_.size(); launch_next())
    for (const size_t parameter : chunks_[num_launched_].content.parameters)
      contribute_nothing(parameter);
}

void GradientChunks::contribute(size_t parameter, double scale) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& tensor = parameters_[parameter].second;
  at::Tensor& gradient = tensor.mutable_grad();
  if (!gradient.defined() || !tensor.requires_grad()) return contribute_nothing(parameter);
  at::Tensor& slot = window(parameter);
  if (is_same_memory(gradient, slot)) {
    slot.mul_(scale);
  } else if (gradient.scalar_type() != slot.scalar_type()) {
    // The product is to be of the slot's precision.
    slot.copy_(reducible(parameter, gradient)).mul_(scale);
  } else {
    // One pass scales and copies.
    at::mul_out(slot, reducible(parameter, gradient), at::native::wrapped_scalar_tensor(scale));
  }
  gradient = slot;
  has_gradient_[parameter] = 1;
}

void GradientChunks::contribute_nothing(size_t parameter) {
  at::Tensor& gradient = parameters_[parameter].second.mutable_grad();
  // A gradient that this rank keeps to itself must not be overwritten.
  if (gradient.defined() && is_same_memory(gradient, window(parameter)))
    gradient = gradient.clone();
  window(parameter).zero_();
}

void GradientChunks::check_type(size_t parameter, const at::Tensor& tensor,
                                const char* what) const {
  const at::Tensor& slot = window(parameter);
  const at::ScalarType own = types_[parameter];
  const bool is_gradient = &tensor != &parameters_[parameter].second;
  const bool fits =
      tensor.scalar_type() == own || (is_gradient && tensor.scalar_type() == slot.scalar_type());
  if (tensor.device() == slot.device() && fits) return;
  throw ConfigError(
      "parallel",
      core::str(what, " \"", parameters_[parameter].first, "\" is ", tensor.scalar_type(), " on ",
                tensor.device(), "; allowed: ", own, " on ", slot.device(),
                ", as when its model was prepared; move and convert a model before that"));
}

void GradientChunks::check_parameters() const {
  for (const size_t parameter : order_)
    check_type(parameter, parameters_[parameter].second, "parameter");
}

// `gradient` dense. Throws ConfigError if it is not what its slot is made for.
at::Tensor GradientChunks::reducible(size_t parameter, const at::Tensor& gradient) const {
  if (gradient.requires_grad())
    throw ConfigError("parallel",
                      core::str("the gradient of \"", parameters_[parameter].first,
                                "\" was made with create_graph = true; allowed: gradients without "
                                "a graph, as their mean over the ranks has none; use "
                                "torch::autograd::grad for the inner derivative, or no_sync"));
  check_type(parameter, gradient, "the gradient of");
  return gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
}

void GradientChunks::set_used(Chunk& chunk) {
  chunk.content.used.fill_(1);
  for (size_t slot = 0; slot < chunk.windows.size(); ++slot)
    if (has_gradient_[chunk.content.parameters[slot]] == 0)
      chunk.content.used.select(0, static_cast<int64_t>(slot)).zero_();
}

void GradientChunks::launch_next() {
  const c10::NoGradGuard no_grad;
  Chunk& chunk = chunks_[num_launched_];
  set_used(chunk);
  chunk.finish = hook_->reduce(world_, chunk.content);
  ++num_launched_;
  ++num_reductions_;
}

void GradientChunks::finish() {
  const c10::NoGradGuard no_grad;
  for (Chunk& chunk : chunks_) {
    std::exchange(chunk.finish, nullptr)();
    assign_unused(chunk);
  }
  forget_arrivals();
}

// Gradients that only other ranks have. Reads the flags only where this rank lacks a gradient.
void GradientChunks::assign_unused(Chunk& chunk) {
  at::Tensor used;
  for (size_t slot = 0; slot < chunk.windows.size(); ++slot) {
    const size_t parameter = chunk.content.parameters[slot];
    const at::Tensor& tensor = parameters_[parameter].second;
    if (has_gradient_[parameter] != 0 || !tensor.requires_grad()) continue;
    if (!used.defined()) used = chunk.content.used.to(at::kCPU, at::kFloat);
    if (used.const_data_ptr<float>()[slot] > 0) tensor.mutable_grad() = chunk.windows[slot];
  }
}

void GradientChunks::discard() {
  for (Chunk& chunk : chunks_)
    if (chunk.finish) std::exchange(chunk.finish, nullptr)();
  forget_arrivals();
}

void GradientChunks::forget_arrivals() {
  for (Chunk& chunk : chunks_) chunk.num_missing = chunk.windows.size();
  has_arrived_.assign(has_arrived_.size(), 0);
  has_gradient_.assign(has_gradient_.size(), 0);
  arrivals_.clear();
  num_launched_ = 0;
}

}  // namespace drivetrain::parallel
