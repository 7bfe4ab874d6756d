// SPDX-License-Identifier: Apache-2.0
// The loops, over a vector type V. Included, as one.h, by each file that compiles for one
// instruction set.
#pragma once

#include "hardware/kernels/one.h"
#include "hardware/kernels/ranges.h"

namespace drivetrain::kernels {
namespace {

template <class V>
struct AdamConstants {
  V grad_factor, l2, keep, beta1, beta1_rest, beta2, beta2_rest, root_factor, eps, step_size;

  explicit AdamConstants(const AdamRange& r)
      : grad_factor(V::all(r.grad_factor)),
        l2(V::all(r.l2)),
        keep(V::all(r.keep)),
        beta1(V::all(r.beta1)),
        beta1_rest(V::all(r.beta1_rest)),
        beta2(V::all(r.beta2)),
        beta2_rest(V::all(r.beta2_rest)),
        root_factor(V::all(r.root_factor)),
        eps(V::all(r.eps)),
        step_size(V::all(r.step_size)) {}
};

// Fetches what the loop comes to in some 100 ns. Past the end it fetches nothing of use, and no
// harm.
template <class P, class G>
void fetch_ahead(const AdamRange& r, int64_t i) {
  constexpr int64_t kAhead = 512;  // elements
  i += kAhead;
  __builtin_prefetch(static_cast<const P*>(r.parameter) + i, /*rw=*/1);
  __builtin_prefetch(static_cast<const G*>(r.grad) + i, /*rw=*/0);
  __builtin_prefetch(r.exp_avg + i, /*rw=*/1);
  __builtin_prefetch(r.exp_avg_sq + i, /*rw=*/1);
}

// P, G, C: parameter, gradient, copy in memory; C is void without a copy. The order of operations
// is that of torch::optim::Adam and AdamW.
template <class V, class P, class G, class C, bool kAmsgrad>
void adam_at(const AdamRange& r, const AdamConstants<V>& c, bool with_l2, int64_t i) {
  if constexpr (V::kWidth > 1) fetch_ahead<P, G>(r, i);
  P* const parameter = static_cast<P*>(r.parameter) + i;
  V p = V::load(parameter);
  V g = V::load(static_cast<const G*>(r.grad) + i) * c.grad_factor;
  if (with_l2) g = g + p * c.l2;
  p = p * c.keep;
  const V m = V::load(r.exp_avg + i) * c.beta1 + g * c.beta1_rest;
  V v = V::load(r.exp_avg_sq + i) * c.beta2 + g * c.beta2_rest * g;
  m.store(r.exp_avg + i);
  v.store(r.exp_avg_sq + i);
  if constexpr (kAmsgrad) {
    v = larger(V::load(r.max_exp_avg_sq + i), v);
    v.store(r.max_exp_avg_sq + i);
  }
  p = p - m / (root(v) * c.root_factor + c.eps) * c.step_size;
  p.store(parameter);
  if constexpr (!__is_same(C, void)) p.store(static_cast<C*>(r.copy) + i);
}

template <class V, class P, class G, class C, bool kAmsgrad>
void adam_range(const AdamRange& given) {
  const AdamRange r = given;  // What is stored through its pointers cannot change it.
  const AdamConstants<V> wide(r);
  const bool with_l2 = r.l2 != 0;
  int64_t i = 0;
  for (; i + V::kWidth <= r.count; i += V::kWidth)
    adam_at<V, P, G, C, kAmsgrad>(r, wide, with_l2, i);
  const AdamConstants<One> single(r);
  for (; i < r.count; ++i) adam_at<One, P, G, C, kAmsgrad>(r, single, with_l2, i);
}

template <class V, class P, class G, class C>
AdamLoop adam_with(bool amsgrad) {
  return amsgrad ? &adam_range<V, P, G, C, true> : &adam_range<V, P, G, C, false>;
}

template <class V, class C>
AdamLoop adam_of_float(AdamTypes types) {
  switch (types.grad) {
    case Element::float32:
      return adam_with<V, float, float, C>(types.amsgrad);
    case Element::float16:
      return adam_with<V, float, Half, C>(types.amsgrad);
    case Element::bfloat16:
      return adam_with<V, float, Brain, C>(types.amsgrad);
    default:
      return nullptr;
  }
}

// A reduced parameter has gradients of its own type or of float, and no copy.
template <class V, class P>
AdamLoop adam_of_reduced(AdamTypes types, Element own) {
  if (types.copy != Element::none) return nullptr;
  if (types.grad == own) return adam_with<V, P, P, void>(types.amsgrad);
  if (types.grad == Element::float32) return adam_with<V, P, float, void>(types.amsgrad);
  return nullptr;
}

template <class V>
AdamLoop adam_loop(AdamTypes types) {
  if (types.parameter == Element::float16) return adam_of_reduced<V, Half>(types, Element::float16);
  if (types.parameter == Element::bfloat16)
    return adam_of_reduced<V, Brain>(types, Element::bfloat16);
  if (types.parameter != Element::float32) return nullptr;
  if (types.copy == Element::none) return adam_of_float<V, void>(types);
  if (types.copy == Element::float16) return adam_of_float<V, Half>(types);
  if (types.copy == Element::bfloat16) return adam_of_float<V, Brain>(types);
  return nullptr;
}

// Element i is added to lane i modulo 32, in double, where the square of a float is exact; then the
// lanes are added in halves. So the sum does not depend on the width of V.
constexpr int kLanes = 32;

inline double sum_of(double* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

// `V at(int64_t i)` gives the elements from i on, `One at_one(int64_t i)` the one at i.
template <class V, class At, class AtOne>
double sum_squares(int64_t count, At at, AtOne at_one) {
  constexpr int kVectors = kLanes / V::kWidth;
  typename V::Squares squares[kVectors];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int k = 0; k < kVectors; ++k) squares[k].add(at(i + k * V::kWidth));
  double lanes[kLanes];
  for (int k = 0; k < kVectors; ++k) squares[k].store(lanes + k * V::kWidth);
  for (int j = 0; i < count; ++i, ++j) {
    const double x = at_one(i).x;
    lanes[j] += x * x;
  }
  return sum_of(lanes);
}

template <class V, class T>
double squares_range(const void* data, int64_t count) {
  const T* const x = static_cast<const T*>(data);
  return sum_squares<V>(
      count, [x](int64_t i) { return V::load(x + i); },
      [x](int64_t i) { return One::load(x + i); });
}

// What counts is the value as written, so it is read back.
template <class V, class T>
V scaled(T* x, V factor) {
  (V::load(x) * factor).store(x);
  return V::load(x);
}

template <class V, class T>
double scale_range(void* data, int64_t count, float factor) {
  T* const x = static_cast<T*>(data);
  const V wide = V::all(factor);
  const One single = One::all(factor);
  return sum_squares<V>(
      count, [x, wide](int64_t i) { return scaled(x + i, wide); },
      [x, single](int64_t i) { return scaled(x + i, single); });
}

template <class V>
SquaresLoop squares_loop(Element element) {
  if (element == Element::float32) return &squares_range<V, float>;
  if (element == Element::float16) return &squares_range<V, Half>;
  if (element == Element::bfloat16) return &squares_range<V, Brain>;
  return nullptr;
}

template <class V>
ScaleLoop scale_loop(Element element) {
  if (element == Element::float32) return &scale_range<V, float>;
  if (element == Element::float16) return &scale_range<V, Half>;
  if (element == Element::bfloat16) return &scale_range<V, Brain>;
  return nullptr;
}

}  // namespace
}  // namespace drivetrain::kernels
