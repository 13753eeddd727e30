/* AVX-512 with VNNI: a line of codes is one register, a dot of 4 columns one instruction. */
#include "path.h"
#include "processor.h"
#if X86
#include <immintrin.h>

#define TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,avx2"
#include "target.h"

#include "rows.h"

#define GROUP 12
enum { PARTS = 1, WIDEST = 24, UNROLL = 8 };
typedef __m512 Vector;
typedef __m512i Ints;

INLINE Vector v_load(const float *x) { return _mm512_loadu_ps(x); }
INLINE void v_store(float *to, Vector v) { _mm512_storeu_ps(to, v); }
INLINE Vector v_all(float x) { return _mm512_set1_ps(x); }
INLINE Vector v_add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
INLINE Vector v_sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
INLINE Vector v_mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
INLINE Vector v_float(Ints v) { return _mm512_cvtepi32_ps(v); }
INLINE Vector v_load_half(const void *x) { return _mm512_cvtph_ps(_mm256_loadu_si256(x)); }
INLINE Vector v_load_bytes(const uint8_t *x) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)x)));
}
INLINE void v_store_half(void *to, Vector v) {
  _mm256_storeu_si256(to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* Bits without the sign, which order as the magnitudes do; the nearest integers, ties to even. */
INLINE Ints i_magnitude(Vector v) {
  return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MAX));
}
INLINE Ints i_nearest(Vector v) { return _mm512_cvtps_epi32(v); }
INLINE Ints i_add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
INLINE Ints i_larger(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
INLINE int32_t i_sum(Ints v) { return _mm512_reduce_add_epi32(v); }
INLINE int32_t i_largest(Ints v) { return _mm512_reduce_max_epi32(v); }
INLINE void i_store_low(int8_t *to, Ints v) {
  _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(v));
}

INLINE Ints i_load(const uint8_t *x) { return _mm512_loadu_si512(x); }
INLINE Ints i_all(int32_t x) { return _mm512_set1_epi32(x); }
INLINE Ints i_four(const int8_t *x) { /* four bytes, again and again */
  int32_t bytes;
  memcpy(&bytes, x, 4);
  return i_all(bytes);
}
INLINE Ints i_low(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE Ints i_high(Ints v) { return i_low(_mm512_srli_epi16(v, 4)); }
/* Low halves of codes with bits 2 * place and 2 * place + 1 of `high` above them. */
INLINE Ints i_with_bits(Ints low, Ints high, int place) {
  const Ints bits = _mm512_set1_epi8(0x30);
  Ints shifted = place == 0   ? _mm512_slli_epi16(high, 4)
                 : place == 1 ? _mm512_slli_epi16(high, 2)
                 : place == 2 ? high
                              : _mm512_srli_epi16(high, 2);
  return _mm512_or_si512(low, _mm512_and_si512(shifted, bits));
}
INLINE Ints i_dot(Ints sums, Ints codes, Ints x) { return _mm512_dpbusd_epi32(sums, codes, x); }

#include "dot_vnni.h"
#include "path_body.h"

const Path avx512_path = PATH("avx512-vnni");
#include "target_end.h"
#else
const Path avx512_path = {0};
#endif
