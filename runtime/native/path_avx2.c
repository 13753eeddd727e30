/* AVX2. A tile is two halves of eight rows.
 *
 * FOUR: unsigned x signed bytes to 16-bit sums; eight of at most 2 * 15 * 127 fit. EIGHT: magnitude
 * times the activation with the weight's sign; a pair is at most 2 * 128 * 127, which fits too.
 */
#if defined(__x86_64__) || defined(_M_X64)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC target("avx2,f16c")
#endif
#include <immintrin.h>

#include "rows.h"

typedef struct {
  __m256 low, high;
} V16;

INLINE V16 v16_load(const float *x) {
  return (V16){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}

INLINE void v16_store(float *to, V16 v) {
  _mm256_storeu_ps(to, v.low);
  _mm256_storeu_ps(to + 8, v.high);
}

INLINE V16 v16_load_half(const uint16_t *x) {
  return (V16){_mm256_cvtph_ps(_mm_loadu_si128((const void *)x)),
               _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + 8)))};
}

INLINE void v16_store_half(uint16_t *to, V16 v) {
  _mm_storeu_si128((void *)to, _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((void *)(to + 8), _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
}

INLINE V16 v16_add_scaled(V16 acc, V16 x, float scale) {
  __m256 all = _mm256_set1_ps(scale);
  return (V16){_mm256_add_ps(acc.low, _mm256_mul_ps(x.low, all)),
               _mm256_add_ps(acc.high, _mm256_mul_ps(x.high, all))};
}

enum { WIDEST = 6 };
#include "attend.h"

static void round_block(const float *x, int8_t *codes, float *scale, int32_t *sum) {
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  __m256 values[4];
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; i++) {
    values[i] = _mm256_loadu_ps(x + 8 * i);
    __m256i bits = _mm256_and_si256(_mm256_castps_si256(values[i]), magnitude_bits);
    largest = _mm256_max_epi32(largest, bits);
  }
  __m128i l = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  l = _mm_max_epi32(l, _mm_shuffle_epi32(l, 0x4e));
  l = _mm_max_epi32(l, _mm_shuffle_epi32(l, 0xb1));
  *sum = 0;
  if (_mm_cvtsi128_si32(l) >= 0x7f800000) {
    memset(codes, 0, BLOCK);
    *scale = NAN;
    return;
  }
  float magnitude = _mm_cvtss_f32(_mm_castsi128_ps(l));
  __m256 inverse = _mm256_set1_ps(magnitude > 1e-30f ? 127.0f / magnitude : 0.0f);
  __m256i q[4];
  for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
  __m256i total = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  *sum = _mm_cvtsi128_si32(t);
  __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256((void *)codes, bytes);
  *scale = magnitude * (1.0f / 127.0f);
}

INLINE __m256i four_bytes(const int8_t *x) {
  int32_t bytes;
  memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}

/* Add one block's product of eight rows of the tile to sums[m]. */
INLINE void dot(const uint8_t *lines, const int8_t *x, int kind, int rows, __m256i *sums) {
  const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  const int count = kind == EIGHT ? 8 : 4;
#pragma GCC unroll 8
  for (int j = 0; j < count; j++) {
    __m256i line = _mm256_loadu_si256((const void *)(lines + 64 * j));
    if (kind == EIGHT) {
      __m256i weight = _mm256_xor_si256(line, _mm256_set1_epi8((char)128));
      __m256i magnitude = _mm256_abs_epi8(weight);
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++) {
        __m256i a = _mm256_sign_epi8(four_bytes(x + m * BLOCK + 4 * j), weight);
        __m256i pairs = _mm256_maddubs_epi16(magnitude, a);
        sums[m] = _mm256_add_epi32(sums[m], _mm256_madd_epi16(pairs, ones));
      }
    } else {
      __m256i first = _mm256_and_si256(line, low);
      __m256i second = _mm256_and_si256(_mm256_srli_epi16(line, 4), low);
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++) {
        __m256i a = _mm256_maddubs_epi16(first, four_bytes(x + m * BLOCK + 8 * j));
        __m256i b = _mm256_maddubs_epi16(second, four_bytes(x + m * BLOCK + 8 * j + 4));
        sums[m] = _mm256_add_epi16(sums[m], _mm256_add_epi16(a, b));
      }
    }
  }
  if (kind != EIGHT)
    for (int m = 0; m < rows; m++) sums[m] = _mm256_madd_epi16(sums[m], ones);
}

INLINE __m256 eight_halves(const uint8_t *bytes) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const void *)bytes));
}

INLINE void tile(const uint8_t *unit, int units, const Group *group, float *out, int kind,
                 int rows) {
  const int codes = kind == EIGHT ? EIGHT_CODES : FOUR_CODES;
  __m256 total[2][4];
  for (int m = 0; m < rows; m++) total[0][m] = total[1][m] = _mm256_setzero_ps();
  for (int b = 0; b < 2 * units; b++) {
    const uint8_t *lines = unit + (b & 1) * codes / 2, *scales = unit + codes + (b & 1) * 2 * TILE;
    size_t at = (size_t)b * (size_t)rows;
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      __m256i sums[4];
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++) sums[m] = _mm256_setzero_si256();
      dot(lines + 32 * half, group->codes + at * BLOCK, kind, rows, sums);
      __m256 scale = eight_halves(scales + 16 * half);
      __m256 minimum = kind == FOUR_MINIMUM ? eight_halves(scales + SCALES + 16 * half) : scale;
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++) {
        size_t i = at + (size_t)m;
        if (kind == FOUR) sums[m] = _mm256_add_epi32(sums[m], _mm256_set1_epi32(group->start[FOUR][i]));
        __m256 step = _mm256_mul_ps(scale, _mm256_set1_ps(group->scales[i]));
        __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[m]), step);
        total[half][m] = _mm256_add_ps(total[half][m], part);
        if (kind == FOUR_MINIMUM) {
          part = _mm256_mul_ps(minimum, _mm256_set1_ps(group->sums[i]));
          total[half][m] = _mm256_sub_ps(total[half][m], part);
        }
      }
    }
    if (b & 1) unit += unit_bytes(kind);
  }
  for (int m = 0; m < rows; m++)
    for (int half = 0; half < 2; half++) _mm256_storeu_ps(out + m * TILE + 8 * half, total[half][m]);
}

#define TILE_OF(KIND, ROWS) \
  static void tile_##KIND##_##ROWS(const uint8_t *codes, int units, const Group *g, float *out) { \
    tile(codes, units, g, out, KIND, ROWS); \
  }
#define TILES_OF(KIND) TILE_OF(KIND, 1) TILE_OF(KIND, 2) TILE_OF(KIND, 3) TILE_OF(KIND, 4)
#define LINE_OF(KIND) {NULL, tile_##KIND##_1, tile_##KIND##_2, tile_##KIND##_3, tile_##KIND##_4}
TILES_OF(FOUR) TILES_OF(FOUR_MINIMUM) TILES_OF(EIGHT)

static void gate(const float *g, const float *up, float *out, int n, int activation) {
  gate_row(g, up, out, n, activation);
}

static void norm(const float *x, const float *update, const float *weight, float epsilon, int n,
                 float *total, float *out) {
  norm_row(x, update, weight, epsilon, n, total, out);
}

const Path avx2_path = {
    .name = "avx2",
    .group = 4,
    .tile = {LINE_OF(FOUR), LINE_OF(FOUR_MINIMUM), LINE_OF(EIGHT)},
    .round = round_block,
    .gate = gate,
    .norm = norm,
    .append = append,
    .attend = attend,
};
#ifdef __clang__
#pragma clang attribute pop
#endif
#else
typedef int not_this_processor;
#endif
