/* `dot` for processors that multiply unsigned with signed bytes and add four products to an int32:
 * i_dot(sums, codes, x). UNROLL: how many lines of a block at a time.
 */
#ifndef SPECRT_DOT_VNNI_H
#define SPECRT_DOT_VNNI_H

INLINE void dot(const uint8_t *lines, const int8_t *x, const int32_t *start, int kind, int rows,
                Ints *sums) {
  const int count = kind == EIGHT ? 8 : 4;
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) sums[m] = i_all(kind == FOUR_MINIMUM ? 0 : start[m]);
#pragma GCC unroll UNROLL
  for (int j = 0; j < count; j++) {
    Ints line = i_load(lines + 64 * j);
    prefetch(lines + 64 * j);
    if (kind == EIGHT) {
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = i_dot(sums[m], line, i_four(x + m * BLOCK + 4 * j));
    } else {
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = i_dot(sums[m], i_low(line), i_four(x + m * BLOCK + 8 * j));
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++)
        sums[m] = i_dot(sums[m], i_high(line), i_four(x + m * BLOCK + 8 * j + 4));
    }
  }
}

#endif
