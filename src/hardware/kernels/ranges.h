// SPDX-License-Identifier: Apache-2.0
// What the loops over host memory take, and where each instruction set's are. The files that
// compile for one instruction set include nothing but this and vector headers: an inline function
// of a library, compiled there, could be the one copy that the linker keeps for every processor.
#pragma once

#include <cstdint>

namespace drivetrain::kernels {

enum class Element : uint8_t { none, float32, float16, bfloat16 };

// One Adam update of `count` elements that lie next to each other. Arithmetic is float32.
struct AdamRange {
  void* parameter = nullptr;
  const void* grad = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  float* max_exp_avg_sq = nullptr;  // amsgrad alone
  void* copy = nullptr;             // the parameter, rounded; null without a copy
  int64_t count = 0;

  float grad_factor = 1;  // 1 / div_scale
  float l2 = 0;           // added to the gradient, times the parameter
  float keep = 1;         // 1 - lr * weight_decay, where decay is decoupled
  float beta1 = 0, beta1_rest = 0;
  float beta2 = 0, beta2_rest = 0;
  float root_factor = 1;  // 1 / sqrt(1 - beta2^step)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^step)
};

struct AdamTypes {
  Element parameter = Element::none, grad = Element::none, copy = Element::none;
  bool amsgrad = false;
};

using AdamLoop = void (*)(const AdamRange& range);
// The sum of squares, infinite or NaN if and only if an element is.
using SquaresLoop = double (*)(const void* data, int64_t count);
// The same of data[i] * factor, which is written to data[i] first.
using ScaleLoop = double (*)(void* data, int64_t count, float factor);

// The loops of one instruction set. A null pointer: no such combination of types.
struct Loops {
  AdamLoop (*adam)(AdamTypes types);
  SquaresLoop (*squares)(Element element);
  ScaleLoop (*scale)(Element element);
};

// Every set gives the same bits: the same operations in the same order, none of them contracted.
extern const Loops kScalarLoops;
#if defined(__x86_64__)
extern const Loops kAvx2Loops;    // requires AVX2 and F16C
extern const Loops kAvx512Loops;  // requires AVX-512F
#endif

}  // namespace drivetrain::kernels
