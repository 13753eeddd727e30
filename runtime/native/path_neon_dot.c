/* NEON with dot products: signed x signed bytes. Codes of 4 and 6 bits are as good signed; those of
 * 8 bits lose their zero code, 128, before.
 */
#include "path.h"
#include "processor.h"
#if ARM
#include <arm_neon.h>

#define TARGET "arch=armv8.2-a+dotprod"
#include "target.h"
#include "vectors_neon.h"

#include "run.h"

INLINE void dot(const uint8_t *lines, const int8_t *x, const int32_t *start, int kind, int rows,
                Ints *sums, const Run *before) {
  (void)before; /* none is late */
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
    sums[m] = vdupq_n_s32(kind == FOUR || has_six_bits(kind) ? start[m] : 0);
#pragma GCC unroll 2
  for (int step = 0; step < run_columns(kind) / COLUMNS; step++) {
    uint8x16_t codes[4];
    int8x16_t weights[4];
    read_codes(lines, kind, step, codes);
    for (int i = 0; i < 4; i++) {
      if (kind == EIGHT) codes[i] = veorq_u8(codes[i], vdupq_n_u8(128));
      weights[i] = vreinterpretq_s8_u8(codes[i]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++) {
      int8x16_t row = vld1q_s8(x + m * BLOCK + step * COLUMNS);
      sums[m] = vdotq_laneq_s32(sums[m], weights[0], row, 0);
      sums[m] = vdotq_laneq_s32(sums[m], weights[1], row, 1);
      sums[m] = vdotq_laneq_s32(sums[m], weights[2], row, 2);
      sums[m] = vdotq_laneq_s32(sums[m], weights[3], row, 3);
    }
  }
}

#include "path_body.h"

const Path neon_dot_path = PATH("neon-dot");
#include "target_end.h"
#else
const Path neon_dot_path = {0};
#endif
