/* The instruction paths: the same arithmetic in other instructions, bit for bit.
 *
 * Products of codes are added as integers, so their order is free. Everything else is a separate
 * IEEE multiply or add in a fixed order per result: no fused multiply-add, no order that depends on
 * how many rows, threads or lanes there are.
 */
#ifndef SPECRT_PATH_H
#define SPECRT_PATH_H
#include "attention.h"
#include "packed.h"

enum { MAX_GROUP = 12 };
enum { SILU, GELU, ACTIVATIONS };

/* Rows of activations, rounded to int8 in blocks of 32; block b of row r is at b * rows + r. */
typedef struct {
  int rows;
  const int8_t *codes;     /* (blocks, rows, 32) */
  const float *scales;     /* (blocks, rows) */
  const float *sums;       /* scale * sum of codes: what a minimum is multiplied with */
  /* By kind: -zero code * sum of codes, of 6 bits for the halves of a block, (2 * blocks, rows).
   * NULL, as sums, where nobody asks for them. */
  const int32_t *start[KINDS];
} Group;

typedef struct {
  const char *name;
  int group; /* most rows of a tile call */
  /* One tile times a group: out (rows, 16), rows `stride` apart. By kind and number of rows. */
  void (*tile[KINDS][MAX_GROUP + 1])(const uint8_t *tile, int blocks, const Group *, float *out,
                                     size_t stride);
  /* 32 values -> codes; the scale, NaN if a value is not finite; the sum of the codes' halves. */
  void (*round)(const float *x, int8_t *codes, float *scale, int32_t sums[2]);
  void (*gate)(const float *gate, const float *up, float *out, int n, int activation);
  /* Of x + update (NULL: of x), 1 / sqrt(mean of squares + epsilon); and these, or a part of them,
   * times that and their weights. total (NULL: not wanted) gets the sum. */
  float (*inverse_rms)(const float *x, const float *update, int n, float epsilon);
  void (*norm)(const float *x, const float *update, const float *weight, float inverse, int n,
               float *total, float *out);
  /* Rows first .. last - 1 of a sequence become entries of its cache. scratch: (head_dim,) */
  void (*append)(const Attention *, const Sequence *, int first, int last, float *scratch);
  /* n rows that share a kv head, counted over tokens and then their heads; see attention.h */
  void (*attend)(const Attention *, const Sequence *, int kv_head, int first, int n,
                 float *scratch);
} Path;

const Path *path(void);
int choose_path(const char *name); /* NULL: the best; 0: not on this processor */

#endif
