/* Embedding: rows `ids` (...) int64 of a packed table: (..., cols). Shares the head's constant. */
#include "half.h"
#include "path.h"

enum { TASK = 16 }; /* rows of a task */

typedef struct {
  const Packed *table;
  const int64_t *ids;
  int64_t count;
  float *out;
} Lookup;

static int code_at(const uint8_t *lines, int kind, int row, int column) {
  const uint8_t *word = lines + 4 * row + column % 4;
  if (kind == EIGHT) return word[column / 4 * 64];
  int low = word[column / 8 * 64] >> column / 4 % 2 * 4 & 15;
  return has_six_bits(kind) ? low | (word[128] >> column / 4 * 2 & 3) << 4 : low;
}

/* The scale of a run, and its minimum where there is one. */
static float scale_at(const uint8_t *scales, int kind, int run, int row, float *minimum) {
  const uint8_t *by = scales + step_bytes(kind);
  if (kind == FOUR_K) {
    uint8_t steps[UNPACKED_STEPS], *at = steps + run * TILE + row;
    unpack_steps(scales, steps);
    *minimum = (float)at[8 * TILE] * half_at(by + 2 * TILE, row);
    return (float)*at * half_at(by, row);
  }
  if (kind == SIX_K) return (float)(scales[run * TILE + row] - 128) * half_at(by, row);
  if (kind == FOUR_MINIMUM) *minimum = half_at(scales + (2 + run) * 2 * TILE, row);
  return half_at(scales + run * 2 * TILE, row);
}

static void read_row(const Packed *table, int64_t id, float *out) {
  const Matrix *matrix = table->matrices;
  const int kind = matrix->kind, row = (int)(id % TILE);
  const int columns = run_columns(kind), runs = unit_runs(kind), zero = zero_code(kind);
  const uint8_t *tile = tile_at(matrix, table->blocks, id / TILE);
  for (int r = 0; r * columns < table->cols; r++) {
    const uint8_t *unit = tile + (size_t)(r / runs) * (size_t)unit_bytes(kind);
    float minimum = 0.0f, scale = scale_at(unit + code_bytes(kind), kind, r % runs, row, &minimum);
    int left = table->cols - r * columns, n = left < columns ? left : columns;
    for (int i = 0; i < n; i++) {
      int code = code_at(unit + r % runs * run_bytes(kind), kind, row, i);
      float value = (float)(code - zero) * scale;
      out[r * columns + i] = has_minimum(kind) ? value - minimum : value;
    }
  }
}

static void read_rows(void *argument, size_t index) {
  const Lookup *lookup = argument;
  int64_t first = (int64_t)index * TASK;
  for (int64_t i = first; i < first + TASK && i < lookup->count; i++)
    read_row(lookup->table, lookup->ids[i], lookup->out + (size_t)i * (size_t)lookup->table->cols);
}

static OrtStatus *compute(const void *state, OrtKernelContext *context) {
  (void)state;
  Tensor ids, constant;
  Packed table;
  TRY(input(context, 0, &ids));
  TRY(input(context, 1, &constant));
  TRY(unpack(&constant, &table));
  if (table.count != 1) return invalid("specrt Embedding: %d tables, 1 wanted", table.count);
  if (ids.rank >= MAX_RANK) return invalid("specrt Embedding: ids of %zu dimensions", ids.rank);
  int64_t count = 1;
  for (size_t i = 0; i < ids.rank; i++) count *= ids.dims[i];
  const int64_t *id = ids.data;
  for (int64_t i = 0; i < count; i++)
    if (id[i] < 0 || id[i] >= table.rows)
      return invalid("specrt Embedding: id %lld, the table has %d rows", (long long)id[i],
                     table.rows);
  void *out;
  ids.dims[ids.rank] = table.cols;
  TRY(output(context, 0, ids.dims, ids.rank + 1, &out));
  Lookup lookup = {&table, id, count, out};
  parallel_for(context, read_rows, (size_t)((count + TASK - 1) / TASK), &lookup);
  return NULL;
}

Operator embedding_operator = {
    .name = "Embedding",
    .inputs = {{ORT_INT64, ORT_REQUIRED}, {ORT_UINT8, ORT_REQUIRED}},
    .outputs = {{ORT_FLOAT, ORT_REQUIRED}},
    .compute = compute,
};
