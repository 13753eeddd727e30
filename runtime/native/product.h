/* Rows of activations, rounded, times packed matrices: what MatMul and FeedForward are made of.
 *
 * Each row is rounded to int8 in blocks of 32, in groups of rows that a tile call takes at once. A
 * result is summed by one thread in one order, so neither rows beside it nor the number of threads
 * change its bits.
 */
#ifndef SPECRT_PRODUCT_H
#define SPECRT_PRODUCT_H
#include "path.h"

/* The rows of a product: those of x or, with a weight, the RMS norm of x + update (NULL: of x).
 * total: where the sum goes, NULL if it is not wanted. */
typedef struct {
  const float *x, *update, *weight;
  float epsilon, *total;
  int64_t count;
} Rows;

/* All rows rounded: groups of `base` rows, the first `extra` of them one row larger. */
typedef struct {
  int rows, cols, blocks, groups, base, extra;
  int8_t *codes;
  float *scales, *sums;   /* sums and starts: NULL if no matrix is of a kind that needs them */
  int32_t *starts[KINDS]; /* see Group */
} Panel;

typedef struct {
  int first, rows;
} Span;

/* Lay a panel out in one allocation, returned; NULL if there is no memory. */
void *make_panel(Panel *panel, int rows, const Packed *weights);

/* Rows of a group. */
Span span(const Panel *panel, int group);

/* Round one block of a row of its group; `left` of its values are there, the rest counts as 0. */
void round_into(const Panel *panel, Span at, int row, int block, const float *x, int left);

/* Write to a block before its rows can be rounded: the cores that read it last give it up in the
 * meantime. */
void claim(const Panel *panel, Span at, int block);

void round_rows(const OrtKernelContext *, const Panel *, const Rows *);

/* One tile of a matrix times the rows of a group: out (rows, 16), rows `stride` apart. */
void multiply_tile(const Panel *panel, const Matrix *matrix, int tile, Span at, float *out,
                   size_t stride);

/* One tile times all rows. out, bias: where the matrix's first column is; a row of out has
 * `width` columns. */
void multiply_all(const Panel *panel, const Matrix *matrix, int tile, const float *bias, float *out,
                  int width);

/* Microseconds of one core for reading so many bytes and multiplying so many numbers. */
double product_time(size_t bytes, double products);

/* How many of `count` equal pieces, of `each` microseconds, make a task of about six. */
int pieces_of_task(int count, double each);

/* The rows of an operator that begin with input 0, whose norm and update are inputs `norm` and
 * norm + 1, and whose outputs are `out` (rows, width) and their sum. An error if they do not fit.
 */
OrtStatus *find_rows(OrtKernelContext *, const char *name, size_t norm, float epsilon,
                     const Packed *weights, int width, Rows *rows, void **out);
OrtStatus *check_bias(const char *name, const Tensor *bias, const Packed *weights);

#endif
