// SPDX-License-Identifier: Apache-2.0
#include "parallel/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "parallel/comm_hooks.h"

namespace drivetrain::parallel {
namespace {

// What is left of a column that nearly depends on those before it is mostly rounding, and not
// orthogonal to them before it has been projected again.
constexpr int kPasses = 3;

void orthogonalize_wide(const at::Tensor& matrix, double epsilon) {
  for (int64_t i = 0; i < matrix.size(1); ++i) {
    at::Tensor column = matrix.select(1, i);
    const at::Tensor done = matrix.narrow(1, 0, i);
    at::Tensor norm;
    for (int pass = 0; pass < (i > 0 ? kPasses : 1); ++pass) {
      if (i > 0) column.sub_(at::matmul(done, at::matmul(done.t(), column)));
      const at::Tensor left = at::linalg_vector_norm(column);
      if (pass == 0) norm = left;
      // A unit vector that shrinks even now consists of rounding in the direction of the others.
      const double least = pass + 1 == kPasses ? 0.5 : 0;
      column.copy_(at::where(left.gt(least), column.div(left), at::zeros_like(column)));
    }
    if (epsilon > 0) column.mul_(norm.div(norm.add(epsilon)));
  }
}

// The memory of a gradient as a matrix: the dimension of the largest stride against the rest.
// Undefined where it has less than two dimensions of more than one.
at::Tensor as_matrix(const GradientChunk& chunk, const at::Tensor& gradient) {
  int64_t rows = 1;
  int64_t stride = 0;
  for (int64_t dim = 0; dim < gradient.dim(); ++dim) {
    if (gradient.size(dim) <= 1 || gradient.stride(dim) <= stride) continue;
    rows = gradient.size(dim);
    stride = gradient.stride(dim);
  }
  if (gradient.numel() == 0 || rows == 1 || rows == gradient.numel()) return {};
  return chunk.flat.narrow(0, gradient.storage_offset(), gradient.numel()).view({rows, -1});
}

at::Tensor as_vector(const GradientChunk& chunk, const at::Tensor& gradient) {
  return chunk.flat.narrow(0, gradient.storage_offset(), gradient.numel());
}

int64_t rank_of(const at::Tensor& matrix, int64_t wanted) {
  return std::min({matrix.size(0), matrix.size(1), wanted});
}

// A buffer for the factors of all matrices, each seen by its matrix through `factor`, and `extra`
// elements behind them.
at::Tensor make_message(PowerSgdRound& round, at::Tensor LowRank::* factor, int side,
                        int64_t wanted_rank, int64_t extra) {
  int64_t numel = extra;
  for (const LowRank& low : round.matrices)
    numel += low.matrix.size(side) * rank_of(low.matrix, wanted_rank);
  const at::Tensor& like = round.rest.front();
  at::Tensor message = at::empty({numel}, like.options());
  int64_t offset = 0;
  for (LowRank& low : round.matrices) {
    const int64_t rank = rank_of(low.matrix, wanted_rank);
    const int64_t size = low.matrix.size(side) * rank;
    low.*factor = message.narrow(0, offset, size).view({low.matrix.size(side), rank});
    offset += size;
  }
  return message;
}

}  // namespace

void orthogonalize_(const at::Tensor& matrix, double epsilon) {
  const at::ScalarType dtype = matrix.scalar_type();
  if (dtype != at::kHalf && dtype != at::kBFloat16) return orthogonalize_wide(matrix, epsilon);
  const at::Tensor wide = matrix.to(at::kFloat);
  orthogonalize_wide(wide, epsilon);
  matrix.copy_(wide);
}

uint64_t SeedSequence::next() {
  constexpr uint32_t limit = 999'999'999;
  constexpr uint32_t mask = (1U << 30U) - 1;
  while (true) {
    const auto value = static_cast<uint32_t>(engine_()) & mask;
    if (value <= limit) return value;
  }
}

bool PowerSgd::is_warming_up(const GradientChunk& chunk) {
  const bool warming_up = step_ < options_.start_iter;
  if (chunk.is_last) ++step_;
  return warming_up;
}

void PowerSgd::start(const World& world, PowerSgdRound& round) {
  feed_back_errors(round);
  choose_factors(round);
  int64_t rest = 0;
  for (const at::Tensor& window : round.rest) rest += window.numel();
  const int64_t wanted = options_.matrix_approximation_rank;
  round.message = make_message(round, &LowRank::p, 0, wanted, rest);
  for (LowRank& low : round.matrices) low.p.copy_(at::matmul(low.matrix, low.q));
  at::Tensor tail = round.message.narrow(0, round.message.numel() - rest, rest);
  tail.copy_(at::cat(round.rest));
  round.pending = world.all_reduce_async(round.message, ReduceOp::sum);
}

void PowerSgd::finish(const World& world, PowerSgdRound& round) {
  round.pending.wait();
  int64_t offset = round.message.numel();
  for (auto window = round.rest.rbegin(); window != round.rest.rend(); ++window) {
    offset -= window->numel();
    window->copy_(round.message.narrow(0, offset, window->numel()));
  }
  if (round.matrices.empty()) return;
  const int64_t wanted = options_.matrix_approximation_rank;
  const at::Tensor message = make_message(round, &LowRank::q, 1, wanted, 0);
  for (LowRank& low : round.matrices) {
    orthogonalize_(low.p, options_.orthogonalization_epsilon);
    low.q.copy_(at::matmul(low.matrix.t(), low.p));
  }
  world.all_reduce_async(message, ReduceOp::sum).wait();
  for (LowRank& low : round.matrices) low.matrix.copy_(at::matmul(low.p, low.q.t()));
  remember(world, round);
}

void PowerSgd::feed_back_errors(PowerSgdRound& round) {
  if (!options_.use_error_feedback) return;
  for (LowRank& low : round.matrices) {
    if (const auto error = errors_.find(low.key); error != errors_.end())
      low.matrix.add_(error->second);
    low.input = low.matrix.clone();
  }
}

void PowerSgd::choose_factors(PowerSgdRound& round) {
  const bool all_known =
      std::all_of(round.matrices.begin(), round.matrices.end(),
                  [this](const LowRank& low) { return factors_.contains(low.key); });
  if (!all_known)
    draw_factors(round);
  else
    for (LowRank& low : round.matrices) low.q = factors_.at(low.key);
  for (LowRank& low : round.matrices) revive_columns(low);
  for (LowRank& low : round.matrices) orthogonalize_(low.q, options_.orthogonalization_epsilon);
}

void PowerSgd::draw_factors(PowerSgdRound& round) {
  auto generator = at::detail::createCPUGenerator(seeds_.next());
  for (LowRank& low : round.matrices) {
    const int64_t rank = rank_of(low.matrix, options_.matrix_approximation_rank);
    const at::Tensor drawn = at::randn({low.matrix.size(1), rank}, generator,
                                       at::TensorOptions().dtype(low.matrix.scalar_type()));
    drawn_[low.key] = drawn.to(low.matrix.device());
    const auto known = factors_.find(low.key);
    low.q = known == factors_.end() ? drawn_[low.key].clone() : known->second;
  }
}

// A gradient of zeros leaves factors of zeros, from which nothing could start again.
void PowerSgd::revive_columns(LowRank& low) const {
  const at::Tensor norms = at::linalg_vector_norm(low.q, 2, 0, /*keepdim=*/true);
  low.q = at::where(norms.gt(0), low.q, drawn_.at(low.key));
}

void PowerSgd::remember(const World& world, PowerSgdRound& round) {
  for (LowRank& low : round.matrices) {
    if (options_.warm_start) factors_[low.key] = low.q.clone();
    // Each rank takes its part of the loss, so that all parts add up to it.
    if (options_.use_error_feedback)
      errors_[low.key] = low.input.sub_(low.matrix, 1.0 / world.world_size());
  }
}

void PowerSgd::clear() {
  factors_.clear();
  drawn_.clear();
  errors_.clear();
}

bool PowerSgdHook::is_worth_compressing(const at::Tensor& matrix) const {
  const PowerSgdOptions& options = power_sgd_.options();
  const int64_t rank = rank_of(matrix, options.matrix_approximation_rank);
  const auto compressed = static_cast<double>((matrix.size(0) + matrix.size(1)) * rank);
  return compressed * options.min_compression_rate < static_cast<double>(matrix.numel());
}

CommHook::Finish PowerSgdHook::reduce(const World& world, const GradientChunk& chunk) {
  if (power_sgd_.is_warming_up(chunk)) return AllReduceHook().reduce(world, chunk);
  auto round = std::make_shared<PowerSgdRound>();
  for (size_t i = 0; i < chunk.gradients.size(); ++i) {
    const at::Tensor matrix = as_matrix(chunk, chunk.gradients[i]);
    if (matrix.defined() && is_worth_compressing(matrix))
      round->matrices.push_back({.key = chunk.parameters[i], .matrix = matrix});
    else
      round->rest.push_back(as_vector(chunk, chunk.gradients[i]));
  }
  round->rest.push_back(chunk.used);
  power_sgd_.start(world, *round);
  return [this, world, round] { power_sgd_.finish(world, *round); };
}

CommHook::Finish BatchedPowerSgdHook::reduce(const World& world, const GradientChunk& chunk) {
  if (power_sgd_.is_warming_up(chunk)) return AllReduceHook().reduce(world, chunk);
  const at::Tensor all = chunk.flat.narrow(0, 0, chunk.flat.numel() - chunk.used.numel());
  const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(all.numel()))));
  const at::Tensor padded = at::zeros({side * side}, all.options());
  const at::Tensor contents = padded.narrow(0, 0, all.numel());
  contents.copy_(all);
  auto round = std::make_shared<PowerSgdRound>();
  if (side > 0)
    round->matrices.push_back({.key = chunk.index, .matrix = padded.view({side, side})});
  round->rest.push_back(chunk.used);
  power_sgd_.start(world, *round);
  return [this, world, round, all, contents] {
    power_sgd_.finish(world, *round);
    all.copy_(contents);
  };
}

}  // namespace drivetrain::parallel
