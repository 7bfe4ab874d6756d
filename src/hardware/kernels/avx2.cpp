// SPDX-License-Identifier: Apache-2.0
// The loops for processors with AVX2 and F16C; empty on others.
#if defined(__x86_64__)
#include <immintrin.h>

#include "hardware/kernels/loops.h"

namespace drivetrain::kernels {
namespace {

inline __m128i load_16(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
inline void store_16(void* to, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(to), x); }

// As narrow(Brain*, float), eight at a time.
inline __m128i to_brains(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

struct Eight {
  static constexpr int kWidth = 8;
  __m256 x;

  static Eight load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Eight load(const Half* from) { return {_mm256_cvtph_ps(load_16(from))}; }
  static Eight load(const Brain* from) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(from)), 16);
    return {_mm256_castsi256_ps(bits)};
  }
  void store(float* to) const { _mm256_storeu_ps(to, x); }
  void store(Half* to) const {
    store_16(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  void store(Brain* to) const { store_16(to, to_brains(x)); }
  static Eight all(float x) { return {_mm256_set1_ps(x)}; }

  friend Eight operator+(Eight a, Eight b) { return {_mm256_add_ps(a.x, b.x)}; }
  friend Eight operator-(Eight a, Eight b) { return {_mm256_sub_ps(a.x, b.x)}; }
  friend Eight operator*(Eight a, Eight b) { return {_mm256_mul_ps(a.x, b.x)}; }
  friend Eight operator/(Eight a, Eight b) { return {_mm256_div_ps(a.x, b.x)}; }
  friend Eight root(Eight a) { return {_mm256_sqrt_ps(a.x)}; }
  friend Eight larger(Eight a, Eight b) { return {_mm256_max_ps(a.x, b.x)}; }

  struct Squares {
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    void add(Eight a) {
      const __m256d first = _mm256_cvtps_pd(_mm256_castps256_ps128(a.x));
      const __m256d second = _mm256_cvtps_pd(_mm256_extractf128_ps(a.x, 1));
      low = _mm256_add_pd(low, _mm256_mul_pd(first, first));
      high = _mm256_add_pd(high, _mm256_mul_pd(second, second));
    }
    void store(double* to) const {
      _mm256_storeu_pd(to, low);
      _mm256_storeu_pd(to + 4, high);
    }
  };
};

}  // namespace

const Loops kAvx2Loops = {&adam_loop<Eight>, &squares_loop<Eight>, &scale_loop<Eight>};

}  // namespace drivetrain::kernels
#endif
