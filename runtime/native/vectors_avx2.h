/* Vectors of 8, for AVX2 and AVX-VNNI. */
#ifndef SPECRT_VECTORS_AVX2_H
#define SPECRT_VECTORS_AVX2_H
#include "rows.h"

#define GROUP 4
enum { PARTS = 2, WIDEST = 6, UNROLL = 2 }; /* unrolled further, gcc runs out of registers */
typedef __m256 Vector;
typedef __m256i Ints;

INLINE Vector v_load(const float *x) { return _mm256_loadu_ps(x); }
INLINE void v_store(float *to, Vector v) { _mm256_storeu_ps(to, v); }
INLINE Vector v_all(float x) { return _mm256_set1_ps(x); }
INLINE Vector v_add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
INLINE Vector v_sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
INLINE Vector v_mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
INLINE Vector v_float(Ints v) { return _mm256_cvtepi32_ps(v); }
INLINE Vector v_load_half(const void *x) { return _mm256_cvtph_ps(_mm_loadu_si128(x)); }
INLINE Vector v_load_bytes(const uint8_t *x) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)x)));
}
INLINE void v_store_half(void *to, Vector v) {
  _mm_storeu_si128(to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* Bits without the sign, which order as the magnitudes do; the nearest integers, ties to even. */
INLINE Ints i_magnitude(Vector v) {
  return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(INT32_MAX));
}
INLINE Ints i_nearest(Vector v) { return _mm256_cvtps_epi32(v); }
INLINE Ints i_add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
INLINE Ints i_larger(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
INLINE int32_t i_sum(Ints v) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE int32_t i_largest(Ints v) {
  __m128i x = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE void i_store_low(int8_t *to, Ints v) {
  __m128i x = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64((void *)to, _mm_packs_epi16(x, x));
}

INLINE Ints i_load(const uint8_t *x) { return _mm256_loadu_si256((const void *)x); }
INLINE Ints i_all(int32_t x) { return _mm256_set1_epi32(x); }
INLINE Ints i_four(const int8_t *x) { /* four bytes, again and again */
  int32_t bytes;
  memcpy(&bytes, x, 4);
  return i_all(bytes);
}
INLINE Ints i_low(Ints v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
INLINE Ints i_high(Ints v) { return i_low(_mm256_srli_epi16(v, 4)); }
/* Low halves of codes with bits 2 * place and 2 * place + 1 of `high` above them. */
INLINE Ints i_with_bits(Ints low, Ints high, int place) {
  const Ints bits = _mm256_set1_epi8(0x30);
  Ints shifted = place == 0   ? _mm256_slli_epi16(high, 4)
                 : place == 1 ? _mm256_slli_epi16(high, 2)
                 : place == 2 ? high
                              : _mm256_srli_epi16(high, 2);
  return _mm256_or_si256(low, _mm256_and_si256(shifted, bits));
}

#endif
