// SPDX-License-Identifier: Apache-2.0
// The loops for processors with AVX-512F; empty on others.
#if defined(__x86_64__)
#include <immintrin.h>

#include "hardware/kernels/loops.h"

namespace drivetrain::kernels {
namespace {

inline __m256i load_32(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store_32(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }

// As narrow(Brain*, float), sixteen at a time.
inline __m256i to_brains(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i either = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(either, 16));
}

struct Sixteen {
  static constexpr int kWidth = 16;
  __m512 x;

  static Sixteen load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Sixteen load(const Half* from) { return {_mm512_cvtph_ps(load_32(from))}; }
  static Sixteen load(const Brain* from) {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_32(from)), 16);
    return {_mm512_castsi512_ps(bits)};
  }
  void store(float* to) const { _mm512_storeu_ps(to, x); }
  void store(Half* to) const {
    store_32(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  void store(Brain* to) const { store_32(to, to_brains(x)); }
  static Sixteen all(float x) { return {_mm512_set1_ps(x)}; }

  friend Sixteen operator+(Sixteen a, Sixteen b) { return {_mm512_add_ps(a.x, b.x)}; }
  friend Sixteen operator-(Sixteen a, Sixteen b) { return {_mm512_sub_ps(a.x, b.x)}; }
  friend Sixteen operator*(Sixteen a, Sixteen b) { return {_mm512_mul_ps(a.x, b.x)}; }
  friend Sixteen operator/(Sixteen a, Sixteen b) { return {_mm512_div_ps(a.x, b.x)}; }
  friend Sixteen root(Sixteen a) { return {_mm512_sqrt_ps(a.x)}; }
  friend Sixteen larger(Sixteen a, Sixteen b) { return {_mm512_max_ps(a.x, b.x)}; }

  struct Squares {
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
    void add(Sixteen a) {
      const __m512d all = _mm512_castps_pd(a.x);
      const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(a.x));
      const __m512d second = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(all, 1)));
      low = _mm512_add_pd(low, _mm512_mul_pd(first, first));
      high = _mm512_add_pd(high, _mm512_mul_pd(second, second));
    }
    void store(double* to) const {
      _mm512_storeu_pd(to, low);
      _mm512_storeu_pd(to + 8, high);
    }
  };
};

}  // namespace

const Loops kAvx512Loops = {&adam_loop<Sixteen>, &squares_loop<Sixteen>, &scale_loop<Sixteen>};

}  // namespace drivetrain::kernels
#endif
