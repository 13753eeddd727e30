/* MatMul: x (..., cols) times packed matrices side by side, plus an optional bias. First the rows
 * are rounded, then the tiles are shared out among the threads.
 *
 *   x, weights (packed), bias, norm (cols), update (as x). Attribute epsilon, of the norm.
 *
 * With a norm the rows are the RMS norm of x + update, and the sum is the second output: the bits
 * of RMSNorm and MatMul.
 */
#include <stdlib.h>

#include "product.h"

typedef struct {
  float epsilon;
} State;

typedef struct {
  const Panel *panel;
  const Matrix *matrix;
  int tiles, step; /* tiles of the matrix, and of a task */
  size_t first;    /* its first task */
  const float *bias;
  float *out;
  int width; /* columns of the result of all matrices */
} Part;

typedef struct {
  Part parts[MAX_MATRICES];
  int count;
} Product;

static void multiply(void *argument, size_t index) {
  const Product *product = argument;
  int i = product->count - 1;
  while (index < product->parts[i].first) i--;
  const Part *part = &product->parts[i];
  int first = (int)(index - part->first) * part->step, last = first + part->step;
  for (int tile = first; tile < last && tile < part->tiles; tile++)
    multiply_all(part->panel, part->matrix, tile, part->bias, part->out, part->width);
}

static OrtStatus *compute(const void *state, OrtKernelContext *context) {
  Tensor constant, bias;
  Packed weights;
  Rows rows;
  void *out;
  TRY(input(context, 1, &constant));
  TRY(input(context, 2, &bias));
  TRY(unpack(&constant, &weights));
  TRY(check_bias("MatMul", &bias, &weights));
  const float epsilon = ((const State *)state)->epsilon;
  TRY(find_rows(context, "MatMul", 3, epsilon, &weights, weights.rows, &rows, &out));
  if (!rows.count) return NULL;

  Panel panel;
  void *memory = make_panel(&panel, (int)rows.count, &weights);
  if (!memory) return out_of_memory((size_t)rows.count * (size_t)weights.cols);
  round_rows(context, &panel, &rows);
  Product product = {.count = weights.count};
  size_t tasks = 0;
  int column = 0;
  for (int i = 0; i < weights.count; i++) {
    const Matrix *matrix = &weights.matrices[i];
    Part *part = &product.parts[i];
    *part = (Part){.panel = &panel, .matrix = matrix, .first = tasks, .width = weights.rows};
    part->bias = bias.data ? (const float *)bias.data + column : NULL;
    part->out = (float *)out + column;
    part->tiles = (matrix->rows + TILE - 1) / TILE;
    const double products = (double)rows.count * weights.blocks * BLOCK * TILE;
    const double each = product_time(tile_bytes(matrix->kind, weights.blocks), products);
    part->step = pieces_of_task(part->tiles, each);
    tasks += (size_t)((part->tiles + part->step - 1) / part->step);
    column += matrix->rows;
  }
  parallel_for(context, multiply, tasks, &product);
  free(memory);
  return NULL;
}

static OrtStatus *create(void *state, const OrtKernelInfo *info) {
  ((State *)state)->epsilon = float_or(info, "epsilon", 0);
  return NULL;
}

Operator matmul_operator = {
    .name = "MatMul",
    .inputs = {{ORT_FLOAT, ORT_REQUIRED}, {ORT_UINT8, ORT_REQUIRED}, {ORT_FLOAT, ORT_OPTIONAL},
               {ORT_FLOAT, ORT_OPTIONAL}, {ORT_FLOAT, ORT_OPTIONAL}},
    .outputs = {{ORT_FLOAT, ORT_REQUIRED}, {ORT_FLOAT, ORT_OPTIONAL}},
    .state_bytes = sizeof(State),
    .create = create,
    .compute = compute,
};
