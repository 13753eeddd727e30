/* `dot` for processors that multiply unsigned with signed bytes and add four products to an int32:
 * i_dot(sums, codes, x). UNROLL: how many lines of a block at a time.
 */
#ifndef SPECRT_DOT_VNNI_H
#define SPECRT_DOT_VNNI_H
#include "run.h"

INLINE void dot(const uint8_t *lines, const int8_t *x, const int32_t *start, int kind, int rows,
                Ints *sums, const Run *before) {
  const int count = kind == EIGHT ? 8 : run_columns(kind) / 8;
  const Ints high = has_six_bits(kind) ? i_load(lines + 128) : i_all(0);
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) sums[m] = i_all(has_minimum(kind) ? 0 : start[m]);
#pragma GCC unroll UNROLL
  for (int j = 0; j < count; j++) {
    if (before) finish(before, rows * j / count, rows * (j + 1) / count);
    Ints line = i_load(lines + 64 * j);
    if (kind == EIGHT) {
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = i_dot(sums[m], line, i_four(x + m * BLOCK + 4 * j));
    } else {
      Ints first = i_low(line), second = i_high(line);
      if (has_six_bits(kind)) first = i_with_bits(first, high, 2 * j);
      if (has_six_bits(kind)) second = i_with_bits(second, high, 2 * j + 1);
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = i_dot(sums[m], first, i_four(x + m * BLOCK + 8 * j));
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = i_dot(sums[m], second, i_four(x + m * BLOCK + 8 * j + 4));
    }
  }
}

#endif
