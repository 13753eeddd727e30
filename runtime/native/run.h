/* A run of columns: its weights' steps, and how its products become part of the totals. */
#ifndef SPECRT_RUN_H
#define SPECRT_RUN_H
#include "packed.h"
#include "rows.h"

enum { WIDTH = LANES / PARTS };

/* Of 16 rows' scales in a unit, a part: those of a run. steps: a unit's, as bytes where they are
 * integers; by: what these are multiplied with. */
INLINE Vector scales_of(const uint8_t *steps, const uint8_t *by, int kind, int run, int p) {
  if (unit_columns(kind) == UNIT) return v_load_half(steps + run * 2 * TILE + 2 * WIDTH * p);
  Vector bytes = v_load_bytes(steps + run * TILE + WIDTH * p);
  if (kind == SIX_K) bytes = v_sub(bytes, v_all(128));
  return v_mul(bytes, v_load_half(by + 2 * WIDTH * p)); /* exact */
}

INLINE Vector minimums_of(const uint8_t *steps, const uint8_t *by, int kind, int run, int p) {
  if (kind != FOUR_K) return v_load_half(steps + (2 + run) * 2 * TILE + 2 * WIDTH * p);
  Vector bytes = v_load_bytes(steps + (8 + run) * TILE + WIDTH * p);
  return v_mul(bytes, v_load_half(by + 2 * TILE + 2 * WIDTH * p));
}

/* What is there of a run once its products are summed. */
typedef struct {
  int kind, begins, ends; /* whether it is the first of its block, the last */
  Ints sums[GROUP];
  Vector step, minimum;
  const float *scale, *sum; /* of the rows in its block */
  Vector *block, *total;    /* of the rows: the runs of the block, and all blocks so far */
} Run;

/* Scale the products of rows first .. last - 1 and add them up. */
INLINE void finish(const Run *run, int first, int last) {
#pragma GCC unroll 16
  for (int m = first; m < last; m++) {
    Vector part = v_mul(v_float(run->sums[m]), run->step), *total = run->total + m;
    run->block[m] = run->begins ? part : v_add(run->block[m], part);
    if (run->ends) *total = v_add(*total, v_mul(run->block[m], v_all(run->scale[m])));
    if (has_minimum(run->kind))
      *total = v_sub(*total, v_mul(run->minimum, v_all(run->sum[m])));
  }
}

/* Whether a run is finished between the lines of the next, where registers hold both: float
 * multiplications then fill what the latency of dot products leaves. Measured: other kinds and
 * fewer rows gain nothing. */
INLINE int is_late(int kind, int rows) { return PARTS == 1 && kind == FOUR_K && rows >= 4; }

#endif
