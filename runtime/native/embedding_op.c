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
  if (kind == EIGHT) return lines[column / 4 * 64 + 4 * row + column % 4];
  int byte = lines[column / 8 * 64 + 4 * row + column % 4];
  return column / 4 % 2 ? byte >> 4 : byte & 15;
}

static void read_row(const Packed *table, int64_t id, float *out) {
  const Matrix *matrix = table->matrices;
  const int kind = matrix->kind, row = (int)(id % TILE);
  const int codes = kind == EIGHT ? EIGHT_CODES : FOUR_CODES, zero = kind == EIGHT ? 128 : 8;
  size_t bytes = unit_bytes(kind);
  const uint8_t *tile = matrix->tiles + (size_t)(id / TILE) * (size_t)table->units * bytes;
  for (int b = 0; b * BLOCK < table->cols; b++) {
    const uint8_t *unit = tile + (size_t)(b / 2) * bytes;
    const uint8_t *lines = unit + (b & 1) * codes / 2, *scales = unit + codes + (b & 1) * 2 * TILE;
    float scale = half_at(scales, row);
    float minimum = kind == FOUR_MINIMUM ? half_at(scales + SCALES, row) : 0.0f;
    int left = table->cols - b * BLOCK, n = left < BLOCK ? left : BLOCK;
    for (int i = 0; i < n; i++) {
      int code = code_at(lines, kind, row, i);
      float value = (float)(kind == FOUR_MINIMUM ? code : code - zero) * scale;
      out[b * BLOCK + i] = kind == FOUR_MINIMUM ? value - minimum : value;
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
      return invalid("specrt Embedding: id %lld, the table has %d rows", (long long)id[i], table.rows);
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
