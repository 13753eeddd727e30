/* AVX-512 with VNNI: a line of codes is one register, a dot product of 4 columns one instruction. */
#if defined(__x86_64__) || defined(_M_X64)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,avx2"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,avx2,prefer-vector-width=512")
#endif
#include <immintrin.h>

#include "rows.h"

typedef __m512 V16;

INLINE V16 v16_load(const float *x) { return _mm512_loadu_ps(x); }
INLINE void v16_store(float *to, V16 v) { _mm512_storeu_ps(to, v); }
INLINE V16 v16_load_half(const uint16_t *x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
}
INLINE void v16_store_half(uint16_t *to, V16 v) {
  _mm256_storeu_si256((void *)to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE V16 v16_add_scaled(V16 acc, V16 x, float scale) {
  return _mm512_add_ps(acc, _mm512_mul_ps(x, _mm512_set1_ps(scale)));
}

enum { WIDEST = 24 };
#include "attend.h"

enum { AHEAD = 8192 }; /* bytes prefetched ahead: the memory's latency, at several rows too */

static void round_block(const float *x, int8_t *codes, float *scale, int32_t *sum) {
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  __m512i larger = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude_bits),
                                    _mm512_and_si512(_mm512_castps_si512(b), magnitude_bits));
  int32_t largest = _mm512_reduce_max_epi32(larger);
  *sum = 0;
  if (largest >= 0x7f800000) {
    memset(codes, 0, BLOCK);
    *scale = NAN;
    return;
  }
  float magnitude;
  memcpy(&magnitude, &largest, 4);
  __m512 inverse = _mm512_set1_ps(magnitude > 1e-30f ? 127.0f / magnitude : 0.0f);
  __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
  __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
  _mm_storeu_si128((void *)codes, _mm512_cvtepi32_epi8(first));
  _mm_storeu_si128((void *)(codes + 16), _mm512_cvtepi32_epi8(second));
  *sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
  *scale = magnitude * (1.0f / 127.0f);
}

INLINE __m512i four_bytes(const int8_t *x) {
  int32_t bytes;
  memcpy(&bytes, x, 4);
  return _mm512_set1_epi32(bytes);
}

INLINE void prefetch(const uint8_t *at) { _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0); }

/* Add one block's product to sums[m]. */
INLINE void dot(const uint8_t *lines, const int8_t *x, int kind, int rows, __m512i *sums) {
  const __m512i low = _mm512_set1_epi8(15);
  const int count = kind == EIGHT ? 8 : 4;
#pragma GCC unroll 8
  for (int j = 0; j < count; j++) {
    __m512i line = _mm512_loadu_si512(lines + 64 * j);
    prefetch(lines + 64 * j);
    if (kind == EIGHT) {
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = _mm512_dpbusd_epi32(sums[m], line, four_bytes(x + m * BLOCK + 4 * j));
    } else {
      __m512i first = _mm512_and_si512(line, low);
      __m512i second = _mm512_and_si512(_mm512_srli_epi16(line, 4), low);
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = _mm512_dpbusd_epi32(sums[m], first, four_bytes(x + m * BLOCK + 8 * j));
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = _mm512_dpbusd_epi32(sums[m], second, four_bytes(x + m * BLOCK + 8 * j + 4));
    }
  }
}

INLINE __m512 sixteen_halves(const uint8_t *bytes) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)bytes));
}

INLINE void tile(const uint8_t *unit, int units, const Group *group, float *out, int kind,
                 int rows) {
  const int codes = kind == EIGHT ? EIGHT_CODES : FOUR_CODES;
  const int8_t *x = group->codes;
  const float *scale = group->scales, *sum = group->sums;
  const int32_t *start = group->start[kind];
  __m512 total[MAX_GROUP];
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) total[m] = _mm512_setzero_ps();
  for (int u = 0; u < units; u++, unit += unit_bytes(kind)) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const uint8_t *steps = unit + codes + half * 2 * TILE;
      __m512i sums[MAX_GROUP];
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = kind == FOUR_MINIMUM ? _mm512_setzero_si512() : _mm512_set1_epi32(start[m]);
      dot(unit + half * codes / 2, x, kind, rows, sums);
      if (!half) prefetch(steps);
      __m512 step = sixteen_halves(steps);
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++) {
        __m512 both = _mm512_mul_ps(step, _mm512_set1_ps(scale[m]));
        total[m] = _mm512_add_ps(total[m], _mm512_mul_ps(_mm512_cvtepi32_ps(sums[m]), both));
      }
      if (kind == FOUR_MINIMUM) {
        if (half) prefetch(unit + codes + SCALES);
        __m512 minimum = sixteen_halves(steps + SCALES);
#pragma GCC unroll 16
        for (int m = 0; m < rows; m++)
          total[m] = _mm512_sub_ps(total[m], _mm512_mul_ps(minimum, _mm512_set1_ps(sum[m])));
      }
      x += rows * BLOCK;
      scale += rows;
      sum += rows;
      start += rows;
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) _mm512_storeu_ps(out + m * TILE, total[m]);
}

#define TILE_OF(KIND, ROWS) \
  static void tile_##KIND##_##ROWS(const uint8_t *codes, int units, const Group *g, float *out) { \
    tile(codes, units, g, out, KIND, ROWS); \
  }
#define TILES_OF(KIND) \
  TILE_OF(KIND, 1) TILE_OF(KIND, 2) TILE_OF(KIND, 3) TILE_OF(KIND, 4) TILE_OF(KIND, 5) \
  TILE_OF(KIND, 6) TILE_OF(KIND, 7) TILE_OF(KIND, 8) TILE_OF(KIND, 9) TILE_OF(KIND, 10) \
  TILE_OF(KIND, 11) TILE_OF(KIND, 12)
#define LINE_OF(KIND) \
  {NULL,            tile_##KIND##_1, tile_##KIND##_2,  tile_##KIND##_3,  tile_##KIND##_4, \
   tile_##KIND##_5, tile_##KIND##_6, tile_##KIND##_7,  tile_##KIND##_8,  tile_##KIND##_9, \
   tile_##KIND##_10, tile_##KIND##_11, tile_##KIND##_12}
TILES_OF(FOUR) TILES_OF(FOUR_MINIMUM) TILES_OF(EIGHT)

static void gate(const float *g, const float *up, float *out, int n, int activation) {
  gate_row(g, up, out, n, activation);
}

static void norm(const float *x, const float *update, const float *weight, float epsilon, int n,
                 float *total, float *out) {
  norm_row(x, update, weight, epsilon, n, total, out);
}

const Path avx512_path = {
    .name = "avx512-vnni",
    .group = MAX_GROUP,
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
