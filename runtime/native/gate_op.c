/* Gate: activation(first half) * second half of each row: (..., 2n) -> (..., n).
 * Attribute activation: 0 SiLU, 1 GELU in its tanh form.
 */
#include "path.h"

enum { TASK = 8192 }; /* values of a task, a few microseconds */

typedef struct {
  int64_t activation;
} State;

typedef struct {
  const float *x;
  float *out;
  int64_t half, pieces, piece;
  int activation;
} Gate;

static void gate_piece(void *argument, size_t index) {
  const Gate *gate = argument;
  int64_t row = (int64_t)index / gate->pieces, first = (int64_t)index % gate->pieces * gate->piece;
  int64_t left = gate->half - first, n = left < gate->piece ? left : gate->piece;
  if (n <= 0) return;
  const float *x = gate->x + row * 2 * gate->half + first;
  path()->gate(x, x + gate->half, gate->out + row * gate->half + first, (int)n, gate->activation);
}

static OrtStatus *create(void *state, const OrtKernelInfo *info) {
  State *s = state;
  TRY(OrtKernelInfoGetInt(info, "activation", &s->activation));
  if (s->activation < 0 || s->activation >= ACTIVATIONS)
    return invalid("specrt Gate: activation %lld is not 0 or 1", (long long)s->activation);
  return NULL;
}

static OrtStatus *compute(const void *state, OrtKernelContext *context) {
  Tensor x;
  TRY(input(context, 0, &x));
  if (x.rank < 1 || x.dims[x.rank - 1] % 2)
    return invalid("specrt Gate: rows of %lld values have no two halves",
                   x.rank ? (long long)x.dims[x.rank - 1] : 1LL);
  int64_t half = x.dims[x.rank - 1] / 2, rows = rows_of(&x);
  void *out;
  x.dims[x.rank - 1] = half;
  TRY(output(context, 0, x.dims, x.rank, &out));
  if (!half || !rows) return NULL;
  int64_t pieces = (half + TASK - 1) / TASK, piece = (half / pieces + TILE) / TILE * TILE;
  Gate gate = {x.data, out, half, pieces, piece, (int)((const State *)state)->activation};
  parallel_for(context, gate_piece, (size_t)(rows * pieces), &gate);
  return NULL;
}

Operator gate_operator = {
    .name = "Gate",
    .inputs = {{ORT_FLOAT, ORT_REQUIRED}},
    .outputs = {{ORT_FLOAT, ORT_REQUIRED}},
    .state_bytes = sizeof(State),
    .create = create,
    .compute = compute,
};
