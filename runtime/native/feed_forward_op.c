/* FeedForward: x (..., cols) times gate and up, activation(gate) * up, times down: (..., rows of
 * down). What is between is rounded for the next product where it arises, never stored as floats.
 *
 *   x, gate_up (packed: two matrices, or one with the gate's rows first), down (packed),
 *   biases of gate_up and of down, norm (cols), update (as x). Attributes activation: 0 SiLU,
 *   1 GELU in its tanh form; epsilon, of the norm.
 *
 * The bits are those of MatMul (see there for the norm), Gate and MatMul.
 */
#include <stdlib.h>

#include "product.h"

typedef struct {
  int64_t activation;
  float epsilon;
} State;

typedef struct {
  Rows rows;
  const float *gate_bias, *up_bias, *down_bias;
  float *out;
  Panel in, between;
  const Matrix *gate, *up, *down;
  int up_tile; /* the first tile of `up`, where it is one matrix with the gate */
  int width;   /* of what is between */
  int activation, step;
} Call;

/* 32 columns of the gate or of up, from a tile on, of which the first `columns` are there. out:
 * (rows, 32) */
static void half_block(const Call *call, const Matrix *matrix, int tile, int columns,
                       const float *bias, Span at, float *out) {
  for (int first = 0; first < columns; first += TILE, tile++)
    multiply_tile(&call->in, matrix, tile, at, out + first, BLOCK);
  for (int row = 0; bias && row < at.rows; row++)
    for (int i = 0; i < columns; i++) out[row * BLOCK + i] += bias[i];
}

static void one_block(const Call *call, int block) {
  const int left = call->width - block * BLOCK, tile = 2 * block;
  const int columns = left < BLOCK ? left : BLOCK; /* none of a block that is padding */
  const int biased = call->gate_bias && columns > 0;
  const float *gate_bias = biased ? call->gate_bias + block * BLOCK : NULL;
  const float *up_bias = biased ? call->up_bias + block * BLOCK : NULL;
  float gate[MAX_GROUP * BLOCK], up[MAX_GROUP * BLOCK];
  for (int g = 0; g < call->between.groups; g++) {
    Span at = span(&call->between, g);
    claim(&call->between, at, block);
    half_block(call, call->gate, tile, columns, gate_bias, at, gate);
    half_block(call, call->up, call->up_tile + tile, columns, up_bias, at, up);
    const int whole = columns == BLOCK, n = whole ? at.rows * BLOCK : columns;
    for (int row = 0; columns > 0 && row < (whole ? 1 : at.rows); row++) {
      float *part = gate + row * BLOCK;
      path()->gate(part, up + row * BLOCK, part, n, call->activation);
    }
    for (int row = 0; row < at.rows; row++)
      round_into(&call->between, at, row, block, gate + row * BLOCK, left);
  }
}

static void blocks(void *argument, size_t index) {
  const Call *call = argument;
  int first = (int)index * call->step, last = first + call->step;
  for (int b = first; b < last && b < call->between.blocks; b++) one_block(call, b);
}

static void down_tiles(void *argument, size_t index) {
  const Call *call = argument;
  int first = (int)index * call->step, last = first + call->step;
  int tiles = (call->down->rows + TILE - 1) / TILE;
  for (int tile = first; tile < last && tile < tiles; tile++)
    multiply_all(&call->between, call->down, tile, call->down_bias, call->out, call->down->rows);
}

static size_t tasks_of(Call *call, int count, size_t bytes, double products) {
  call->step = pieces_of_task(count, product_time(bytes, products));
  return (size_t)((count + call->step - 1) / call->step);
}

static void run(OrtKernelContext *context, Call *call) {
  const int cols = call->in.blocks, tiles = (call->down->rows + TILE - 1) / TILE;
  const double block_products = (double)call->in.rows * TILE * BLOCK;
  round_rows(context, &call->in, &call->rows);
  size_t bytes = 2 * (tile_bytes(call->gate->kind, cols) + tile_bytes(call->up->kind, cols));
  size_t tasks = tasks_of(call, call->between.blocks, bytes, 4 * cols * block_products);
  parallel_for(context, blocks, tasks, call);
  bytes = tile_bytes(call->down->kind, call->between.blocks);
  tasks = tasks_of(call, tiles, bytes, call->between.blocks * block_products);
  parallel_for(context, down_tiles, tasks, call);
}

static OrtStatus *compute(const void *state, OrtKernelContext *context) {
  const State *s = state;
  Tensor gate_up, down, bias, down_bias;
  Packed weights, second;
  Rows rows;
  void *out;
  TRY(input(context, 1, &gate_up));
  TRY(input(context, 2, &down));
  TRY(input(context, 3, &bias));
  TRY(input(context, 4, &down_bias));
  TRY(unpack(&gate_up, &weights));
  TRY(unpack(&down, &second));
  TRY(check_bias("FeedForward", &bias, &weights));
  TRY(check_bias("FeedForward", &down_bias, &second));
  const int width = weights.rows / 2, one = weights.count == 1;
  if (weights.count > 2 || weights.rows % 2 || second.count != 1 || second.cols != width ||
      (one ? width % TILE : weights.matrices[0].rows != width))
    return invalid("specrt FeedForward: gate and up of %d rows in %d matrices, down of %d columns",
                   weights.rows, weights.count, second.cols);
  TRY(find_rows(context, "FeedForward", 5, s->epsilon, &weights, second.rows, &rows, &out));
  if (!rows.count) return NULL;

  Call call = {
      .rows = rows,
      .gate_bias = bias.data,
      .up_bias = bias.data ? (const float *)bias.data + width : NULL,
      .down_bias = down_bias.data,
      .out = out,
      .gate = weights.matrices,
      .up = weights.matrices + !one,
      .down = second.matrices,
      .up_tile = one ? width / TILE : 0,
      .width = width,
      .activation = (int)s->activation,
  };
  void *in = make_panel(&call.in, (int)rows.count, &weights);
  void *between = make_panel(&call.between, (int)rows.count, &second);
  OrtStatus *status = NULL;
  if (in && between)
    run(context, &call);
  else
    status = out_of_memory((size_t)rows.count * (size_t)(weights.cols + width));
  free(in);
  free(between);
  return status;
}

static OrtStatus *create(void *state, const OrtKernelInfo *info) {
  State *s = state;
  s->epsilon = float_or(info, "epsilon", 0);
  TRY(OrtKernelInfoGetInt(info, "activation", &s->activation));
  if (s->activation < 0 || s->activation >= ACTIVATIONS)
    return invalid("specrt FeedForward: activation %lld is not 0 or 1", (long long)s->activation);
  return NULL;
}

Operator feed_forward_operator = {
    .name = "FeedForward",
    .inputs = {{ORT_FLOAT, ORT_REQUIRED}, {ORT_UINT8, ORT_REQUIRED}, {ORT_UINT8, ORT_REQUIRED},
               {ORT_FLOAT, ORT_OPTIONAL}, {ORT_FLOAT, ORT_OPTIONAL},
               {ORT_FLOAT, ORT_OPTIONAL}, {ORT_FLOAT, ORT_OPTIONAL}},
    .outputs = {{ORT_FLOAT, ORT_REQUIRED}, {ORT_FLOAT, ORT_OPTIONAL}},
    .state_bytes = sizeof(State),
    .create = create,
    .compute = compute,
};
