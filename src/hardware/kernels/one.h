// SPDX-License-Identifier: Apache-2.0
// A vector of one float, for the tails of loops and for processors without wider ones, and the
// element types in memory. Included by each file that compiles for one instruction set: all of it
// is that file's own.
#pragma once

#include <cstdint>

namespace drivetrain::kernels {
namespace {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline float widen(float x) { return x; }
inline float widen(Brain x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(Half x) {
  const uint32_t sign = (x.bits & 0x8000U) << 16, rest = x.bits & 0x7FFFU;
  // Subnormal: a whole number of 2^-24. No subnormal float, which a thread may flush to zero.
  if (rest < 0x0400U) return float_of(sign | bits_of(static_cast<float>(rest) * 0x1p-24F));
  if (rest < 0x7C00U) return float_of(sign | ((rest << 13) + 0x38000000U));
  const uint32_t quiet = rest > 0x7C00U ? 0x00400000U : 0;
  return float_of(sign | 0x7F800000U | quiet | (rest << 13));
}

inline void narrow(float* to, float x) { *to = x; }

// To the nearest, ties to even, as the processors' own conversions.
inline void narrow(Brain* to, float x) {
  const uint32_t bits = bits_of(x);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const uint32_t rounded = is_nan ? bits | 0x00400000U : bits + 0x7FFFU + ((bits >> 16) & 1U);
  to->bits = static_cast<uint16_t>(rounded >> 16);
}

inline uint32_t half_magnitude(uint32_t bits) {
  if (bits > 0x7F800000U) return 0x7E00U | ((bits >> 13) & 0x3FFU);
  if (bits >= 0x47800000U) return 0x7C00U;  // 65536 and above
  if (bits < 0x38800000U)                   // subnormal: adding 0.5 leaves 2^-24 as the last digit
    return bits_of(float_of(bits) + 0.5F) - 0x3F000000U;
  return (bits - 0x38000000U + 0xFFFU + ((bits >> 13) & 1U)) >> 13;
}

inline void narrow(Half* to, float x) {
  const uint32_t bits = bits_of(x);
  to->bits = static_cast<uint16_t>(((bits >> 16) & 0x8000U) | half_magnitude(bits & 0x7FFFFFFFU));
}

struct One {
  static constexpr int kWidth = 1;
  float x;

  template <class T>
  static One load(const T* from) {
    return {widen(*from)};
  }
  template <class T>
  void store(T* to) const {
    narrow(to, x);
  }
  static One all(float x) { return {x}; }

  friend One operator+(One a, One b) { return {a.x + b.x}; }
  friend One operator-(One a, One b) { return {a.x - b.x}; }
  friend One operator*(One a, One b) { return {a.x * b.x}; }
  friend One operator/(One a, One b) { return {a.x / b.x}; }
  friend One root(One a) { return {__builtin_sqrtf(a.x)}; }
  friend One larger(One a, One b) { return {a.x > b.x ? a.x : b.x}; }  // b if either is NaN

  // A sum of squares for each element of the vector.
  struct Squares {
    double sum = 0;
    void add(One a) { sum += static_cast<double>(a.x) * static_cast<double>(a.x); }
    void store(double* to) const { *to = sum; }
  };
};

}  // namespace
}  // namespace drivetrain::kernels
