#include "product.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64 }; /* bytes of a cache line */
enum { MANY = 8 };  /* rows of a group where there are many: no tile takes less time a row */
enum { FEW = 4 };     /* groups that are shared out by blocks too */
enum { AT_ONCE = 8 }; /* blocks of a row that are normed together */

void *make_panel(Panel *panel, int rows, const Packed *weights) {
  const int most = path()->group, many = rows > 2 * most && most > MANY;
  const int each = many ? MANY : most, groups = (rows + each - 1) / each;
  *panel = (Panel){.rows = rows, .cols = weights->cols, .blocks = weights->blocks};
  panel->groups = groups;
  panel->base = rows / groups;
  panel->extra = rows % groups;
  const size_t n = (size_t)rows * (size_t)panel->blocks;
  uint8_t *memory = malloc(LINE + n * (BLOCK + (2 + 2 * KINDS) * sizeof(float)));
  if (!memory) return NULL;
  panel->codes = (int8_t *)(memory + LINE - (uintptr_t)memory % LINE);
  panel->scales = (float *)(void *)(panel->codes + n * BLOCK);
  float *next = panel->scales + n;
  for (int i = 0; i < weights->count; i++) {
    const int kind = weights->matrices[i].kind;
    if (has_minimum(kind) ? panel->sums != NULL : panel->starts[kind] != NULL) continue;
    if (has_minimum(kind))
      panel->sums = next;
    else
      panel->starts[kind] = (int32_t *)next;
    next += n * (size_t)(BLOCK / run_columns(kind));
  }
  return memory;
}

Span span(const Panel *panel, int group) {
  int larger = group < panel->extra;
  return (Span){group * panel->base + (larger ? group : panel->extra), panel->base + larger};
}

/* Where a block of a group's rows begins, counted in blocks of one row. */
static size_t block_of(const Panel *panel, Span at, int block) {
  return (size_t)at.first * (size_t)panel->blocks + (size_t)block * (size_t)at.rows;
}

void round_into(const Panel *panel, Span at, int row, int block, const float *x, int left) {
  float part[BLOCK];
  if (left < BLOCK) {
    for (int j = 0; j < BLOCK; j++) part[j] = j < left ? x[j] : 0;
    x = part;
  }
  const size_t i = block_of(panel, at, block) + (size_t)row;
  int32_t halves[2];
  path()->round(x, panel->codes + i * BLOCK, panel->scales + i, halves);
  const int32_t sum = halves[0] + halves[1];
  if (panel->sums) panel->sums[i] = panel->scales[i] * (float)sum;
  for (int kind = 0; kind < KINDS; kind++) {
    int32_t *start = panel->starts[kind];
    if (!start) continue;
    if (run_columns(kind) == BLOCK) {
      start[i] = -zero_code(kind) * sum;
      continue;
    }
    start += 2 * (i - (size_t)row) + (size_t)row;
    for (int half = 0; half < 2; half++) start[half * at.rows] = -zero_code(kind) * halves[half];
  }
}

void claim(const Panel *panel, Span at, int block) {
  const size_t i = block_of(panel, at, block), n = (size_t)at.rows * sizeof(float);
  memset(panel->codes + i * BLOCK, 0, (size_t)at.rows * BLOCK);
  memset(panel->scales + i, 0, n);
  if (panel->sums) memset(panel->sums + i, 0, n);
  for (int kind = 0; kind < KINDS; kind++) {
    const size_t runs = (size_t)(BLOCK / run_columns(kind));
    if (panel->starts[kind]) memset(panel->starts[kind] + runs * i, 0, runs * n);
  }
}

typedef struct {
  const Panel *panel;
  const Rows *rows;
  int step, tasks; /* blocks of a task, and tasks of a group */
} Rounding;

static void round_row(const Rounding *rounding, Span at, int row, int first, int last) {
  const Panel *panel = rounding->panel;
  const Rows *rows = rounding->rows;
  const size_t begin = (size_t)(at.first + row) * (size_t)panel->cols;
  const float *x = rows->x + begin, *update = rows->update ? rows->update + begin : NULL;
  float inverse = 0.0f;
  if (rows->weight) inverse = path()->inverse_rms(x, update, panel->cols, rows->epsilon);
  for (int b = first; b < last; b += AT_ONCE) {
    const int end = last < b + AT_ONCE ? last : b + AT_ONCE, column = b * BLOCK;
    const int n = (end * BLOCK < panel->cols ? end * BLOCK : panel->cols) - column;
    const float *values = x + column;
    float normed[AT_ONCE * BLOCK];
    if (rows->weight && n > 0) {
      path()->norm(values, update ? update + column : NULL, rows->weight + column, inverse, n,
                   rows->total ? rows->total + begin + column : NULL, normed);
      values = normed;
    }
    for (int i = b; i < end; i++, values += BLOCK)
      round_into(panel, at, row, i, values, panel->cols - i * BLOCK);
  }
}

/* Some blocks of all rows of a group: rows that share cache lines are rounded by one thread, which
 * is worth that each norms the rows it needs anew. */
static void round_some(void *argument, size_t index) {
  const Rounding *rounding = argument;
  const Span at = span(rounding->panel, (int)index / rounding->tasks);
  const int first = (int)index % rounding->tasks * rounding->step, end = first + rounding->step;
  const int last = end < rounding->panel->blocks ? end : rounding->panel->blocks;
  for (int row = 0; row < at.rows; row++) round_row(rounding, at, row, first, last);
}

void round_rows(const OrtKernelContext *context, const Panel *panel, const Rows *rows) {
  const int most = panel->base + !!panel->extra; /* rows of a group */
  Rounding rounding = {panel, rows, panel->blocks, 0};
  if (panel->groups < FEW) rounding.step = pieces_of_task(panel->blocks, most * BLOCK / 1e3);
  rounding.tasks = (panel->blocks + rounding.step - 1) / rounding.step;
  parallel_for(context, round_some, (size_t)panel->groups * (size_t)rounding.tasks, &rounding);
}

void multiply_tile(const Panel *panel, const Matrix *matrix, int tile, Span at, float *out,
                   size_t stride) {
  const size_t first = block_of(panel, at, 0);
  Group group = {
      .rows = at.rows,
      .codes = panel->codes + first * BLOCK,
      .scales = panel->scales + first,
      .sums = panel->sums ? panel->sums + first : NULL,
  };
  const int32_t *start = panel->starts[matrix->kind];
  if (start) group.start[matrix->kind] = start + first * (size_t)(BLOCK / run_columns(matrix->kind));
  const uint8_t *codes = tile_at(matrix, panel->blocks, tile);
  path()->tile[matrix->kind][at.rows](codes, panel->blocks, &group, out, stride);
}

void multiply_all(const Panel *panel, const Matrix *matrix, int tile, const float *bias, float *out,
                  int width) {
  const int left = matrix->rows - tile * TILE, whole = left >= TILE;
  const size_t stride = whole ? (size_t)width : TILE;
  float part[MAX_GROUP * TILE];
  for (int g = 0; g < panel->groups; g++) {
    Span at = span(panel, g);
    float *to = out + (size_t)at.first * (size_t)width + (size_t)tile * TILE;
    float *result = whole ? to : part;
    multiply_tile(panel, matrix, tile, at, result, stride);
    if (whole && !bias) continue;
    for (int row = 0; row < at.rows; row++, to += width, result += stride)
      for (int i = 0; i < (whole ? TILE : left); i++)
        to[i] = bias ? result[i] + bias[tile * TILE + i] : result[i];
  }
}

double product_time(size_t bytes, double products) {
  double reading = (double)bytes / 20e3, computing = products / 150e3;
  return reading > computing ? reading : computing;
}

int pieces_of_task(int count, double each) {
  if (each * count < 6) return count;
  int step = (int)(6 / each), quarter = (count + 3) / 4;
  step = step < quarter ? step : quarter;
  return step > 1 ? step : 1;
}

OrtStatus *find_rows(OrtKernelContext *context, const char *name, size_t norm, float epsilon,
                     const Packed *weights, int width, Rows *rows, void **out) {
  Tensor x, weight, update;
  TRY(input(context, 0, &x));
  TRY(input(context, norm, &weight));
  TRY(input(context, norm + 1, &update));
  if (x.rank < 1 || x.dims[x.rank - 1] != weights->cols)
    return invalid("specrt %s: input has rows of %lld, the weights of %d", name,
                   x.rank ? (long long)x.dims[x.rank - 1] : 0LL, weights->cols);
  const int64_t count = rows_of(&x), most = INT32_MAX / 256;
  if (count > most)
    return invalid("specrt %s: %lld rows, the most is %lld", name, (long long)count,
                   (long long)most);
  if (weight.data && (weight.rank != 1 || weight.dims[0] != weights->cols))
    return invalid("specrt %s: the norm has %lld weights, rows have %d", name,
                   weight.rank ? (long long)weight.dims[0] : 1LL, weights->cols);
  if (update.data && (!weight.data || !same_shape(&x, &update)))
    return invalid("specrt %s: x and update differ in shape, or there is no norm", name);
  void *total = NULL;
  if (weight.data) TRY(output(context, 1, x.dims, x.rank, &total));
  *rows = (Rows){x.data, update.data, weight.data, epsilon, total, count};
  x.dims[x.rank - 1] = width;
  return output(context, 0, x.dims, x.rank, out);
}

OrtStatus *check_bias(const char *name, const Tensor *bias, const Packed *weights) {
  if (bias->data && (bias->rank != 1 || bias->dims[0] != weights->rows))
    return invalid("specrt %s: bias has %lld values, the weights %d rows", name,
                   bias->rank ? (long long)bias->dims[0] : 1LL, weights->rows);
  return NULL;
}
