#include "product.h"

#include <stdlib.h>
#include <string.h>

void *make_panel(Panel *panel, int rows, const Packed *weights, int normed) {
  int groups = (rows + path()->group - 1) / path()->group;
  *panel = (Panel){.rows = rows, .cols = weights->cols, .blocks = weights->blocks};
  panel->groups = groups;
  panel->base = rows / groups;
  panel->extra = rows % groups;
  size_t n = (size_t)rows * (size_t)panel->blocks;
  size_t floats = normed ? (size_t)rows * (size_t)weights->cols : 0;
  float *memory = malloc(n * (BLOCK + 6 * sizeof(float)) + floats * sizeof(float));
  if (!memory) return NULL;
  panel->scales = memory;
  panel->sums = memory + n;
  panel->starts_four = (int32_t *)(memory + 2 * n);
  panel->starts_eight = (int32_t *)(memory + 3 * n);
  panel->starts_six = (int32_t *)(memory + 4 * n);
  panel->normed = memory + 6 * n;
  panel->codes = (int8_t *)(memory + 6 * n + floats);
  return memory;
}

Span span(const Panel *panel, int group) {
  int larger = group < panel->extra;
  return (Span){group * panel->base + (larger ? group : panel->extra), panel->base + larger};
}

void round_into(const Panel *panel, Span at, int row, int block, const float *x, int left) {
  float part[BLOCK];
  if (left < BLOCK) {
    for (int j = 0; j < BLOCK; j++) part[j] = j < left ? x[j] : 0;
    x = part;
  }
  size_t first = (size_t)at.first * (size_t)panel->blocks;
  size_t i = first + (size_t)block * (size_t)at.rows + (size_t)row;
  int32_t halves[2];
  path()->round(x, panel->codes + i * BLOCK, panel->scales + i, halves);
  int32_t sum = halves[0] + halves[1], *six = panel->starts_six + first + i - (size_t)row;
  panel->sums[i] = panel->scales[i] * (float)sum;
  panel->starts_four[i] = -zero_code(FOUR) * sum;
  panel->starts_eight[i] = -zero_code(EIGHT) * sum;
  for (int half = 0; half < 2; half++)
    six[(block + half) * at.rows + row] = -zero_code(SIX) * halves[half];
}

typedef struct {
  const Panel *panel;
  const Rows *rows;
  int step, tasks; /* rows of a task, and tasks of a group */
} Rounding;

static void round_row(const Panel *panel, const Rows *rows, Span at, int row) {
  const size_t first = (size_t)(at.first + row) * (size_t)panel->cols;
  const float *x = rows->x + first;
  if (rows->weight) {
    path()->norm(x, rows->update ? rows->update + first : NULL, rows->weight, rows->epsilon,
                 panel->cols, rows->total ? rows->total + first : NULL, panel->normed + first);
    x = panel->normed + first;
  }
  for (int b = 0; b < panel->blocks; b++)
    round_into(panel, at, row, b, x + b * BLOCK, panel->cols - b * BLOCK);
}

/* As many rows of each group as make a task. */
static void round_some(void *argument, size_t index) {
  const Rounding *rounding = argument;
  const Span at = span(rounding->panel, (int)index / rounding->tasks);
  const int first = (int)index % rounding->tasks * rounding->step, last = first + rounding->step;
  for (int row = first; row < last && row < at.rows; row++)
    round_row(rounding->panel, rounding->rows, at, row);
}

void round_rows(const OrtKernelContext *context, const Panel *panel, const Rows *rows) {
  const int most = panel->base + !!panel->extra; /* rows of a group */
  Rounding rounding = {panel, rows, pieces_of_task(most, panel->cols / 1e3), 0};
  rounding.tasks = (most + rounding.step - 1) / rounding.step;
  parallel_for(context, round_some, (size_t)panel->groups * (size_t)rounding.tasks, &rounding);
}

void multiply_tile(const Panel *panel, const Matrix *matrix, int tile, Span at, float *out,
                   size_t stride) {
  const size_t first = (size_t)at.first * (size_t)panel->blocks;
  const int32_t *four = panel->starts_four + first, *eight = panel->starts_eight + first,
                *six = panel->starts_six + 2 * first;
  const Group group = {
      .rows = at.rows,
      .codes = panel->codes + first * BLOCK,
      .scales = panel->scales + first,
      .sums = panel->sums + first,
      .start = {four, NULL, eight, six, NULL, six},
  };
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
