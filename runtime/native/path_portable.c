/* Plain C, and the definition of what every other path computes. */
#include "half.h"
#include "rows.h"

typedef struct {
  float lane[LANES];
} V16;

INLINE V16 v16_load(const float *x) {
  V16 v;
  memcpy(&v, x, sizeof v);
  return v;
}

INLINE void v16_store(float *to, V16 v) { memcpy(to, &v, sizeof v); }

INLINE V16 v16_load_half(const uint16_t *x) {
  V16 v;
  for (int i = 0; i < LANES; i++) v.lane[i] = half_to_float(x[i]);
  return v;
}

INLINE void v16_store_half(uint16_t *to, V16 v) {
  for (int i = 0; i < LANES; i++) to[i] = half_of(v.lane[i]);
}

INLINE V16 v16_add_scaled(V16 acc, V16 x, float scale) {
  for (int i = 0; i < LANES; i++) acc.lane[i] += x.lane[i] * scale;
  return acc;
}

enum { WIDEST = 2 };
#include "attend.h"

static void round_block(const float *x, int8_t *codes, float *scale, int32_t *sum) {
  const float shift = 12582912.0f; /* adding it rounds to the nearest, ties to even */
  uint32_t largest = 0;            /* bits of a magnitude order as the magnitudes do */
  for (int i = 0; i < BLOCK; i++) {
    uint32_t bits;
    memcpy(&bits, x + i, 4);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  *sum = 0;
  if (largest >= 0x7f800000u) {
    memset(codes, 0, BLOCK);
    *scale = NAN;
    return;
  }
  float magnitude;
  memcpy(&magnitude, &largest, 4);
  float inverse = magnitude > 1e-30f ? 127.0f / magnitude : 0.0f;
  for (int i = 0; i < BLOCK; i++) {
    float rounded = (x[i] * inverse + shift) - shift;
    codes[i] = (int8_t)rounded;
    *sum += (int32_t)rounded;
  }
  *scale = magnitude * (1.0f / 127.0f);
}

/* The integer product of one block: sums (16), started where the zero code puts it. */
INLINE void dot(const uint8_t *lines, const int8_t *x, int kind, int32_t *sums) {
  for (int j = 0; j < (kind == EIGHT ? 8 : 4); j++)
    for (int r = 0; r < TILE; r++)
      for (int i = 0; i < 4; i++) {
        int code = lines[64 * j + 4 * r + i];
        if (kind == EIGHT)
          sums[r] += code * x[4 * j + i];
        else
          sums[r] += (code & 15) * x[8 * j + i] + (code >> 4) * x[8 * j + 4 + i];
      }
}

INLINE void tile(const uint8_t *tile, int units, const Group *group, float *out, int kind) {
  const int codes = kind == EIGHT ? EIGHT_CODES : FOUR_CODES, rows = group->rows;
  for (int i = 0; i < rows * TILE; i++) out[i] = 0.0f;
  for (int b = 0; b < 2 * units; b++) {
    const uint8_t *unit = tile + (size_t)(b / 2) * unit_bytes(kind);
    const uint8_t *lines = unit + (b & 1) * codes / 2, *scales = unit + codes + (b & 1) * 2 * TILE;
    for (int m = 0; m < rows; m++) {
      size_t at = (size_t)b * (size_t)rows + (size_t)m;
      int32_t sums[TILE];
      for (int r = 0; r < TILE; r++) sums[r] = kind == FOUR_MINIMUM ? 0 : group->start[kind][at];
      dot(lines, group->codes + at * BLOCK, kind, sums);
      for (int r = 0; r < TILE; r++) {
        float scale = half_at(scales, r) * group->scales[at];
        float part = (float)sums[r] * scale;
        out[m * TILE + r] += part;
        if (kind == FOUR_MINIMUM) {
          float minimum = half_at(scales + SCALES, r) * group->sums[at];
          out[m * TILE + r] -= minimum;
        }
      }
    }
  }
}

#define TILE_OF(KIND) \
  static void tile_##KIND(const uint8_t *codes, int units, const Group *group, float *out) { \
    tile(codes, units, group, out, KIND); \
  }
TILE_OF(FOUR) TILE_OF(FOUR_MINIMUM) TILE_OF(EIGHT)

static void gate(const float *g, const float *up, float *out, int n, int activation) {
  gate_row(g, up, out, n, activation);
}

static void norm(const float *x, const float *update, const float *weight, float epsilon, int n,
                 float *total, float *out) {
  norm_row(x, update, weight, epsilon, n, total, out);
}

#define ROWS_1_TO_4(f) {NULL, f, f, f, f}
const Path portable_path = {
    .name = "portable",
    .group = 4,
    .tile = {ROWS_1_TO_4(tile_FOUR), ROWS_1_TO_4(tile_FOUR_MINIMUM), ROWS_1_TO_4(tile_EIGHT)},
    .round = round_block,
    .gate = gate,
    .norm = norm,
    .append = append,
    .attend = attend,
};
