/* NEON with the products of int8 matrices: two rows of weights times two rows of activations over
 * eight columns are one instruction. A last single row takes the dot product of its own.
 */
#include "path.h"
#include "processor.h"
#if ARM
#include <arm_neon.h>

#define TARGET "arch=armv8.2-a+dotprod+i8mm"
#include "target.h"
#include "vectors_neon.h"

#include "run.h"

INLINE uint8x16_t zip_low(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

INLINE uint8x16_t zip_high(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

/* Rows 0 and 1 of a step's weights, columns 0 .. 7; rows 2 and 3; then columns 8 .. 15. */
INLINE void pair_rows(const uint8x16_t codes[4], uint8x16_t pairs[4]) {
  for (int i = 0; i < 4; i += 2) {
    pairs[i] = zip_low(codes[i], codes[i + 1]);
    pairs[i + 1] = zip_high(codes[i], codes[i + 1]);
  }
}

INLINE void dot(const uint8_t *lines, const int8_t *x, const int32_t *start, int kind, int rows,
                Ints *sums, const Run *before) {
  (void)before; /* none is late */
  Ints square[GROUP]; /* of rows m, m + 1: with rows 0 and 1 of the weights, with rows 2 and 3 */
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++) square[m] = vdupq_n_s32(0);
#pragma GCC unroll 2
  for (int step = 0; step < run_columns(kind) / COLUMNS; step++) {
    uint8x16_t codes[4], pairs[4];
    read_codes(lines, kind, step, codes);
    pair_rows(codes, pairs);
    x += step * COLUMNS;
#pragma GCC unroll 4
    for (int m = 0; m + 1 < rows; m += 2) {
      int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(x + m * BLOCK));
      int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(x + (m + 1) * BLOCK));
      int8x16_t low = vreinterpretq_s8_s64(vzip1q_s64(a, b));
      int8x16_t high = vreinterpretq_s8_s64(vzip2q_s64(a, b));
      square[m] = vusmmlaq_s32(vusmmlaq_s32(square[m], pairs[0], low), pairs[2], high);
      square[m + 1] = vusmmlaq_s32(vusmmlaq_s32(square[m + 1], pairs[1], low), pairs[3], high);
    }
    if (rows % 2) {
      int8x16_t row = vld1q_s8(x + (rows - 1) * BLOCK);
      Ints *last = square + rows - 1;
      *last = vusdotq_laneq_s32(*last, codes[0], row, 0);
      *last = vusdotq_laneq_s32(*last, codes[1], row, 1);
      *last = vusdotq_laneq_s32(*last, codes[2], row, 2);
      *last = vusdotq_laneq_s32(*last, codes[3], row, 3);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m + 1 < rows; m += 2) {
    sums[m] = vuzp1q_s32(square[m], square[m + 1]);
    sums[m + 1] = vuzp2q_s32(square[m], square[m + 1]);
  }
  if (rows % 2) sums[rows - 1] = square[rows - 1];
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
    if (!has_minimum(kind)) sums[m] = vaddq_s32(sums[m], vdupq_n_s32(start[m]));
}

#include "path_body.h"

const Path neon_i8mm_path = PATH("neon-i8mm");
#include "target_end.h"
#else
const Path neon_i8mm_path = {0};
#endif
