/* MatMul: x (..., cols) times packed matrices side by side, plus an optional bias.
 *
 * First each row is rounded to int8 in blocks of 32, in groups of rows that a tile call takes at
 * once; then the tiles are shared out among the threads. A result is summed by one thread in one
 * order, so neither rows beside it nor the number of threads change its bits.
 */
#include <stdlib.h>
#include <string.h>

#include "path.h"

/* All rows rounded: groups of `base` rows, the first `extra` of them one row larger. */
typedef struct {
  const float *x;
  int rows, cols, blocks, groups, base, extra;
  int8_t *codes;
  float *scales, *sums;
  int32_t *starts_four, *starts_eight;
} Panel;

typedef struct {
  int first, rows;
} Span;

static Span span(const Panel *panel, int group) {
  int larger = group < panel->extra;
  return (Span){group * panel->base + (larger ? group : panel->extra), panel->base + larger};
}

static Group group_of(const Panel *panel, Span span) {
  size_t at = (size_t)span.first * (size_t)panel->blocks;
  return (Group){
      .rows = span.rows,
      .codes = panel->codes + at * BLOCK,
      .scales = panel->scales + at,
      .sums = panel->sums + at,
      .start = {panel->starts_four + at, panel->starts_four + at, panel->starts_eight + at},
  };
}

/* Lay the panel out in one allocation, returned; NULL if there is no memory. */
static void *make_panel(Panel *panel, const float *x, int rows, const Packed *weights) {
  int groups = (rows + path()->group - 1) / path()->group;
  *panel = (Panel){.x = x, .rows = rows, .cols = weights->cols, .blocks = 2 * weights->units};
  panel->groups = groups;
  panel->base = rows / groups;
  panel->extra = rows % groups;
  size_t n = (size_t)rows * (size_t)panel->blocks;
  float *memory = malloc(n * (BLOCK + 4 * sizeof(float)));
  panel->scales = memory;
  if (!memory) return NULL;
  panel->sums = memory + n;
  panel->starts_four = (int32_t *)(memory + 2 * n);
  panel->starts_eight = (int32_t *)(memory + 3 * n);
  panel->codes = (int8_t *)(memory + 4 * n);
  return memory;
}

static void round_group(void *argument, size_t index) {
  const Panel *panel = argument;
  Span at = span(panel, (int)index);
  for (int row = 0; row < at.rows; row++) {
    const float *x = panel->x + (size_t)(at.first + row) * (size_t)panel->cols;
    for (int b = 0; b < panel->blocks; b++) {
      float part[BLOCK] = {0};
      const float *block = x + b * BLOCK;
      int left = panel->cols - b * BLOCK;
      if (left < BLOCK) {
        if (left > 0) memcpy(part, block, (size_t)left * sizeof *part);
        block = part;
      }
      size_t i = (size_t)at.first * (size_t)panel->blocks + (size_t)b * (size_t)at.rows + (size_t)row;
      int32_t sum;
      path()->round(block, panel->codes + i * BLOCK, panel->scales + i, &sum);
      panel->sums[i] = panel->scales[i] * (float)sum;
      panel->starts_four[i] = -8 * sum;
      panel->starts_eight[i] = -128 * sum;
    }
  }
}

typedef struct {
  const Panel *panel;
  const Matrix *matrix;
  int units, column; /* the matrix's first column of the result */
  int tiles, step;   /* tiles of the matrix, and of a task */
  size_t first;      /* its first task */
  int width;         /* columns of the result */
  const float *bias;
  float *out;
} Part;

typedef struct {
  Part parts[MAX_MATRICES];
  int count;
} Product;

static void multiply_tile(const Part *part, int tile) {
  const Panel *panel = part->panel;
  size_t bytes = (size_t)part->units * unit_bytes(part->matrix->kind);
  const uint8_t *codes = part->matrix->tiles + (size_t)tile * bytes;
  int left = part->matrix->rows - tile * TILE, column = part->column + tile * TILE;
  int n = left < TILE ? left : TILE;
  float result[MAX_GROUP * TILE];
  for (int g = 0; g < panel->groups; g++) {
    Span at = span(panel, g);
    Group group = group_of(panel, at);
    path()->tile[part->matrix->kind][at.rows](codes, part->units, &group, result);
    for (int row = 0; row < at.rows; row++) {
      float *out = part->out + (size_t)(at.first + row) * (size_t)part->width + column;
      if (part->bias)
        for (int i = 0; i < n; i++) out[i] = result[row * TILE + i] + part->bias[column + i];
      else
        memcpy(out, result + row * TILE, (size_t)n * sizeof *out);
    }
  }
}

static void multiply(void *argument, size_t index) {
  const Product *product = argument;
  int i = product->count - 1;
  while (index < product->parts[i].first) i--;
  const Part *part = &product->parts[i];
  int first = (int)(index - part->first) * part->step, last = first + part->step;
  for (int tile = first; tile < last && tile < part->tiles; tile++) multiply_tile(part, tile);
}

/* Tiles of a task: about six microseconds, at the rates one core reads and multiplies at. */
static int tiles_of_task(int tiles, size_t bytes, double products) {
  double reading = (double)bytes / 20e3, computing = products / 150e3;
  double each = reading > computing ? reading : computing;
  if (each * tiles < 6) return tiles;
  int step = (int)(6 / each), quarter = (tiles + 3) / 4;
  step = step < quarter ? step : quarter;
  return step > 1 ? step : 1;
}

static OrtStatus *compute(const void *state, OrtKernelContext *context) {
  (void)state;
  Tensor x, constant, bias;
  Packed weights;
  TRY(input(context, 0, &x));
  TRY(input(context, 1, &constant));
  TRY(input(context, 2, &bias));
  TRY(unpack(&constant, &weights));
  if (x.rank < 1 || x.dims[x.rank - 1] != weights.cols)
    return invalid("specrt MatMul: input has rows of %lld, the weights of %d",
                   x.rank ? (long long)x.dims[x.rank - 1] : 0LL, weights.cols);
  if (bias.data && (bias.rank != 1 || bias.dims[0] != weights.rows))
    return invalid("specrt MatMul: bias has %lld values, the weights %d rows",
                   bias.rank ? (long long)bias.dims[0] : 1LL, weights.rows);
  int64_t rows = rows_of(&x), most = INT32_MAX / 256;
  if (rows > most) return invalid("specrt MatMul: %lld rows, the most is %lld", (long long)rows, (long long)most);
  void *out;
  x.dims[x.rank - 1] = weights.rows;
  TRY(output(context, 0, x.dims, x.rank, &out));
  if (!rows) return NULL;

  Panel panel;
  void *memory = make_panel(&panel, x.data, (int)rows, &weights);
  if (!memory) return out_of_memory((size_t)rows * (size_t)weights.cols);
  parallel_for(context, round_group, (size_t)panel.groups, &panel);
  Product product = {.count = weights.count};
  size_t tasks = 0;
  int column = 0;
  for (int i = 0; i < weights.count; i++) {
    const Matrix *matrix = &weights.matrices[i];
    Part *part = &product.parts[i];
    *part = (Part){&panel, matrix, weights.units, column, 0, 0, tasks, weights.rows, bias.data, out};
    part->tiles = (matrix->rows + TILE - 1) / TILE;
    size_t bytes = (size_t)weights.units * unit_bytes(matrix->kind);
    part->step = tiles_of_task(part->tiles, bytes, (double)rows * weights.units * UNIT * TILE);
    tasks += (size_t)((part->tiles + part->step - 1) / part->step);
    column += matrix->rows;
  }
  parallel_for(context, multiply, tasks, &product);
  free(memory);
  return NULL;
}

Operator matmul_operator = {
    .name = "MatMul",
    .inputs = {{ORT_FLOAT, ORT_REQUIRED}, {ORT_UINT8, ORT_REQUIRED}, {ORT_FLOAT, ORT_OPTIONAL}},
    .outputs = {{ORT_FLOAT, ORT_REQUIRED}},
    .compute = compute,
};
