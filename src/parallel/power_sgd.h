// SPDX-License-Identifier: Apache-2.0
// PowerSGD (Vogels, Karimireddy, Jaggi 2019, arXiv 1905.13727): a gradient matrix M travels as
// P = M Q and, with the sum of all P made orthonormal, Q = M^T P; every rank continues with P Q^T.
// What that loses is added to the rank's next gradient.
//
// Random factors are drawn as PyTorch's hook draws them, so the two can be compared number by
// number.
#pragma once

#include <drivetrain/parallel.h>

#include <map>
#include <random>
#include <vector>

namespace drivetrain::parallel {

// Makes the columns of a matrix (rows, columns) orthonormal, in place, from the first to the last;
// `epsilon` is added to their norms. Zero columns stay zero; one that depends on those before it
// becomes zero or, made of what rounding left, any unit vector orthogonal to them.
void orthogonalize_(const at::Tensor& matrix, double epsilon);

// Seeds as numpy.random.RandomState(seed).randint(1000000000) gives them.
class SeedSequence {
 public:
  explicit SeedSequence(uint32_t seed) : engine_(seed) {}
  uint64_t next();

 private:
  std::mt19937 engine_;
};

// One matrix on its way; `key` names it from step to step.
struct LowRank {
  size_t key = 0;
  at::Tensor matrix;      // (n, m): contents, then the sum over ranks
  at::Tensor p = {};      // (n, r)
  at::Tensor q = {};      // (m, r)
  at::Tensor input = {};  // the contents before compression, where errors are fed back
};

// What one reduction sends: all P and the uncompressed rest first, then all Q.
struct PowerSgdRound {
  std::vector<LowRank> matrices;
  std::vector<at::Tensor> rest;  // 1-D windows
  at::Tensor message;
  Pending pending;
};

// What both variants share: the factors and errors that outlive a step, and the two messages.
class PowerSgd {
 public:
  explicit PowerSgd(const PowerSgdOptions& options) : options_(options), seeds_(options.seed) {}

  const PowerSgdOptions& options() const { return options_; }

  // True for a chunk that is still reduced plainly. Counts a step at its last chunk.
  bool is_warming_up(const GradientChunk& chunk);

  // Collective. matrix, key and rest are given.
  void start(const World& world, PowerSgdRound& round);

  // Collective. Blocks.
  void finish(const World& world, PowerSgdRound& round);

  // Forgets factors and errors.
  void clear();

 private:
  void feed_back_errors(PowerSgdRound& round);
  void choose_factors(PowerSgdRound& round);
  void draw_factors(PowerSgdRound& round);
  void revive_columns(LowRank& low) const;
  void remember(const World& world, PowerSgdRound& round);

  PowerSgdOptions options_;
  SeedSequence seeds_;
  int64_t step_ = 0;
  std::map<size_t, at::Tensor> factors_;  // Q
  std::map<size_t, at::Tensor> drawn_;    // Q as first drawn: in the place of columns that vanished
  std::map<size_t, at::Tensor> errors_;
};

// Matrix by matrix: gradients of two dimensions and more, the first against the rest. Gradients
// that would not shrink enough, vectors among them, travel as they are.
class PowerSgdHook : public CommHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : power_sgd_(options) {}
  Finish reduce(const World& world, const GradientChunk& chunk) override;

 private:
  bool is_worth_compressing(const at::Tensor& matrix) const;

  PowerSgd power_sgd_;
};

// A whole chunk as one square matrix, padded with zeros.
class BatchedPowerSgdHook : public CommHook {
 public:
  explicit BatchedPowerSgdHook(const PowerSgdOptions& options) : power_sgd_(options) {}
  Finish reduce(const World& world, const GradientChunk& chunk) override;
  void chunks_changed() override { power_sgd_.clear(); }

 private:
  PowerSgd power_sgd_;
};

}  // namespace drivetrain::parallel
