/* What a path is made of, written once over its vectors and compiled into each path's file.
 *
 * Before it a path defines GROUP, the most rows of a tile call; PARTS, how many vectors hold 16
 * floats; WIDEST, how many times 16 floats attention sums at a time; the types Vector and Ints of
 * 16 / PARTS floats or int32; v_load, v_store, v_load_half, v_store_half (float16), v_load_bytes
 * (not signed), v_all, v_add, v_sub, v_mul, v_float (of Ints); i_all, i_add, i_magnitude, i_nearest
 * (of a Vector), i_larger, i_sum, i_largest, i_store_low (a byte of each); and `dot`:
 *
 *   dot(lines, x, start, kind, rows, sums, before): sums[m] = the product of row m of x, rows 32
 *   apart, with a run's weights less their zero code. lines: the part's bytes of the run's lines,
 *   64 apart.
 *   start[m] is what the zero code makes of x[m], for those who multiply the codes as they are.
 *   before: the run to finish meanwhile, NULL where none is late (run.h).
 *
 * After it stands the path's value, PATH(name).
 */
#ifndef SPECRT_PATH_BODY_H
#define SPECRT_PATH_BODY_H
#include "prefetch.h"
#include "run.h"

typedef struct {
  Vector part[PARTS];
} V16;

INLINE V16 v16_load(const float *x) {
  V16 v;
  for (int p = 0; p < PARTS; p++) v.part[p] = v_load(x + p * WIDTH);
  return v;
}

INLINE void v16_store(float *to, V16 v) {
  for (int p = 0; p < PARTS; p++) v_store(to + p * WIDTH, v.part[p]);
}

INLINE V16 v16_load_half(const uint16_t *x) {
  V16 v;
  for (int p = 0; p < PARTS; p++) v.part[p] = v_load_half(x + p * WIDTH);
  return v;
}

INLINE void v16_store_half(uint16_t *to, V16 v) {
  for (int p = 0; p < PARTS; p++) v_store_half(to + p * WIDTH, v.part[p]);
}

INLINE V16 v16_load_codes(const uint8_t *x, float zero) {
  V16 v;
  for (int p = 0; p < PARTS; p++) v.part[p] = v_sub(v_load_bytes(x + p * WIDTH), v_all(zero));
  return v;
}

INLINE V16 v16_add_scaled(V16 acc, V16 x, float scale) {
  for (int p = 0; p < PARTS; p++)
    acc.part[p] = v_add(acc.part[p], v_mul(x.part[p], v_all(scale)));
  return acc;
}

/* The scale of n numbers, a multiple of 16, as codes, and its inverse; NaN and 0 if one is not
 * finite. */
INLINE float scale_of(const float *x, int n, float *inverse) {
  Ints top = i_all(0);
  for (int i = 0; i < n; i += WIDTH) top = i_larger(top, i_magnitude(v_load(x + i)));
  const int32_t bits = i_largest(top);
  float magnitude;
  memcpy(&magnitude, &bits, sizeof magnitude);
  const int finite = bits < 0x7f800000;
  *inverse = finite && magnitude > 1e-30f ? 127.0f / magnitude : 0.0f;
  return finite ? magnitude * (1.0f / 127.0f) : NAN;
}

/* 16 finite numbers times inverse, to codes; their sum. */
INLINE int32_t round_lanes(const float *x, float inverse, int8_t *codes) {
  Ints sum = i_all(0);
  for (int i = 0; i < LANES; i += WIDTH) {
    Ints nearest = i_nearest(v_mul(v_load(x + i), v_all(inverse)));
    i_store_low(codes + i, nearest);
    sum = i_add(sum, nearest);
  }
  return i_sum(sum);
}

static void round_block(const float *x, int8_t *codes, float *scale, int32_t sums[2]) {
  float inverse;
  *scale = scale_of(x, BLOCK, &inverse);
  sums[0] = sums[1] = 0;
  if (*scale != *scale) {
    memset(codes, 0, BLOCK);
    return;
  }
  for (int half = 0; half < 2; half++)
    sums[half] = round_lanes(x + half * LANES, inverse, codes + half * LANES);
}

#include "attend.h"

INLINE void tile(const uint8_t *unit, int blocks, const Group *group, float *out, size_t stride,
                 int kind, int rows) {
  const int columns = run_columns(kind), runs = BLOCK / columns; /* of a block */
  const int late = is_late(kind, rows);
  const int share = (unit_bytes(kind) + 64 * unit_runs(kind) - 1) / (64 * unit_runs(kind));
  const int8_t *x = group->codes;
  const float *scale = group->scales, *sum = group->sums; /* sums NULL where there is no minimum */
  const int32_t *start = group->start[kind];              /* NULL where there is one */
  Vector total[PARTS][GROUP], block[PARTS][GROUP];
  uint8_t unpacked[UNPACKED_STEPS];
  Run before = {.kind = kind, .begins = 1, .ends = 1, .scale = scale, .sum = sum,
                .step = v_all(0.0f), .minimum = v_all(0.0f), .block = block[0], .total = total[0]};
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) before.sums[m] = i_all(0);
#pragma GCC unroll 4
  for (int p = 0; p < PARTS; p++)
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) total[p][m] = block[p][m] = v_all(0.0f);
  for (int b = 0; b < blocks; b += unit_runs(kind) / runs, unit += unit_bytes(kind)) {
    const uint8_t *scales = unit + code_bytes(kind), *by = scales + step_bytes(kind);
    const uint8_t *steps = kind == FOUR_K ? unpacked : scales;
    if (kind == FOUR_K) unpack_steps(scales, unpacked);
#pragma GCC unroll 2 /* no further: gcc loads ahead what rows share, until registers run out */
    for (int run = 0; run < unit_runs(kind); run++) {
      const int last = run % runs == runs - 1; /* of a block */
      const uint8_t *lines = unit + run * run_bytes(kind);
      prefetch(unit + run * share * 64, share);
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; p++) {
        Run now = {.kind = kind, .begins = run % runs == 0, .ends = last, .scale = scale,
                   .sum = sum, .block = block[p], .total = total[p]};
        dot(lines + 4 * WIDTH * p, x + run % runs * columns, start, kind, rows, now.sums,
            late ? &before : NULL);
        now.step = scales_of(steps, by, kind, run, p);
        if (has_minimum(kind)) now.minimum = minimums_of(steps, by, kind, run, p);
        if (late)
          before = now;
        else
          finish(&now, 0, rows);
      }
      if (!has_minimum(kind)) start += rows;
      if (!last) continue;
      x += rows * BLOCK; /* the next block's */
      scale += rows;
      if (has_minimum(kind)) sum += rows;
    }
  }
  if (late) finish(&before, 0, rows);
#pragma GCC unroll 4
  for (int p = 0; p < PARTS; p++)
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) v_store(out + (size_t)m * stride + p * WIDTH, total[p][m]);
}

/* A tile function for each kind and number of rows, so that their loops unroll. */
#define TILE_OF(KIND, ROWS) \
  static void tile_##KIND##_##ROWS(const uint8_t *codes, int blocks, const Group *g, float *out, \
                                   size_t stride) { \
    tile(codes, blocks, g, out, stride, KIND, ROWS); \
  }
#define TILES_1_TO_4(KIND) TILE_OF(KIND, 1) TILE_OF(KIND, 2) TILE_OF(KIND, 3) TILE_OF(KIND, 4)
#define NAMES_1_TO_4(KIND) tile_##KIND##_1, tile_##KIND##_2, tile_##KIND##_3, tile_##KIND##_4
#define TILES_5_TO_8(KIND) TILE_OF(KIND, 5) TILE_OF(KIND, 6) TILE_OF(KIND, 7) TILE_OF(KIND, 8)
#define NAMES_5_TO_8(KIND) tile_##KIND##_5, tile_##KIND##_6, tile_##KIND##_7, tile_##KIND##_8
#define TILES_9_TO_12(KIND) TILE_OF(KIND, 9) TILE_OF(KIND, 10) TILE_OF(KIND, 11) TILE_OF(KIND, 12)
#define NAMES_9_TO_12(KIND) tile_##KIND##_9, tile_##KIND##_10, tile_##KIND##_11, tile_##KIND##_12
#if GROUP == 4
#define TILES(KIND) TILES_1_TO_4(KIND)
#define NAMES(KIND) {NULL, NAMES_1_TO_4(KIND)}
#elif GROUP == 8
#define TILES(KIND) TILES_1_TO_4(KIND) TILES_5_TO_8(KIND)
#define NAMES(KIND) {NULL, NAMES_1_TO_4(KIND), NAMES_5_TO_8(KIND)}
#else
#define TILES(KIND) TILES_1_TO_4(KIND) TILES_5_TO_8(KIND) TILES_9_TO_12(KIND)
#define NAMES(KIND) {NULL, NAMES_1_TO_4(KIND), NAMES_5_TO_8(KIND), NAMES_9_TO_12(KIND)}
#endif
TILES(FOUR) TILES(FOUR_MINIMUM) TILES(EIGHT) TILES(SIX) TILES(FOUR_K) TILES(SIX_K)

static void gate(const float *g, const float *up, float *out, int n, int activation) {
  gate_row(g, up, out, n, activation);
}

static float inverse_rms(const float *x, const float *update, int n, float epsilon) {
  return inverse_rms_row(x, update, n, epsilon);
}

static void norm(const float *x, const float *update, const float *weight, float inverse, int n,
                 float *total, float *out) {
  norm_row(x, update, weight, inverse, n, total, out);
}

#define PATH(NAME) \
  { \
    .name = NAME, .group = GROUP, \
    .tile = {NAMES(FOUR), NAMES(FOUR_MINIMUM), NAMES(EIGHT), NAMES(SIX), NAMES(FOUR_K), \
             NAMES(SIX_K)}, \
    .round = round_block, .gate = gate, .inverse_rms = inverse_rms, .norm = norm, \
    .append = append, .attend = attend, \
  }

#endif
