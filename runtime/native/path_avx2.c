/* AVX2. FOUR: unsigned x signed bytes to 16-bit sums; eight of at most 2 * 15 * 127 fit, and of 6
 * bits two of 2 * 63 * 127. EIGHT: magnitude times the activation with the weight's sign; a pair is
 * at most 2 * 128 * 127, which fits.
 */
#include "path.h"
#include "processor.h"
#if X86
#include <immintrin.h>

#define TARGET "avx2,f16c"
#include "target.h"
#include "vectors_avx2.h"

#include "run.h"

INLINE void dot(const uint8_t *lines, const int8_t *x, const int32_t *start, int kind, int rows,
                Ints *sums, const Run *before) {
  (void)before; /* none is late */
  const Ints ones = _mm256_set1_epi16(1);
  const int count = kind == EIGHT ? 8 : run_columns(kind) / 8;
  const Ints high = has_six_bits(kind) ? i_load(lines + 128) : i_all(0);
#pragma GCC unroll 4
  for (int m = 0; m < rows; m++) sums[m] = _mm256_setzero_si256();
#pragma GCC unroll UNROLL
  for (int j = 0; j < count; j++) {
    Ints line = i_load(lines + 64 * j);
    if (kind == EIGHT) {
      Ints weight = _mm256_xor_si256(line, _mm256_set1_epi8((char)128));
      Ints magnitude = _mm256_abs_epi8(weight);
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++) {
        Ints a = _mm256_sign_epi8(i_four(x + m * BLOCK + 4 * j), weight);
        Ints pairs = _mm256_maddubs_epi16(magnitude, a);
        sums[m] = _mm256_add_epi32(sums[m], _mm256_madd_epi16(pairs, ones));
      }
    } else {
      Ints first = i_low(line), second = i_high(line);
      if (has_six_bits(kind)) first = i_with_bits(first, high, 2 * j);
      if (has_six_bits(kind)) second = i_with_bits(second, high, 2 * j + 1);
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++) {
        Ints a = _mm256_maddubs_epi16(first, i_four(x + m * BLOCK + 8 * j));
        Ints b = _mm256_maddubs_epi16(second, i_four(x + m * BLOCK + 8 * j + 4));
        Ints both = _mm256_add_epi16(a, b);
        sums[m] = has_six_bits(kind) ? _mm256_add_epi32(sums[m], _mm256_madd_epi16(both, ones))
                              : _mm256_add_epi16(sums[m], both);
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < rows; m++) {
    if (kind != EIGHT && !has_six_bits(kind)) sums[m] = _mm256_madd_epi16(sums[m], ones);
    if (kind == FOUR || has_six_bits(kind)) sums[m] = _mm256_add_epi32(sums[m], i_all(start[m]));
  }
}

#include "path_body.h"

const Path avx2_path = PATH("avx2");
#include "target_end.h"
#else
const Path avx2_path = {0};
#endif
