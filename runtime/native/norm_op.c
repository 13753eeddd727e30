/* RMSNorm: of x (..., n), or of x + update where that is given; the sum is the second output. */
#include "path.h"

enum { TASK = 16384 }; /* values of a task, a few microseconds */

typedef struct {
  float epsilon;
} State;

typedef struct {
  const float *x, *update, *weight;
  float epsilon, *normed, *total;
  int64_t rows, n, step;
} Norm;

static void norm_rows(void *argument, size_t index) {
  const Norm *norm = argument;
  int64_t first = (int64_t)index * norm->step;
  for (int64_t row = first; row < first + norm->step && row < norm->rows; row++) {
    size_t at = (size_t)row * (size_t)norm->n;
    const float *x = norm->x + at, *update = norm->update ? norm->update + at : NULL;
    const float inverse = path()->inverse_rms(x, update, (int)norm->n, norm->epsilon);
    path()->norm(x, update, norm->weight, inverse, (int)norm->n,
                 norm->total ? norm->total + at : NULL, norm->normed + at);
  }
}

static OrtStatus *create(void *state, const OrtKernelInfo *info) {
  return OrtKernelInfoGetFloat(info, "epsilon", &((State *)state)->epsilon);
}

static OrtStatus *compute(const void *state, OrtKernelContext *context) {
  Tensor x, weight, update;
  TRY(input(context, 0, &x));
  TRY(input(context, 1, &weight));
  TRY(input(context, 2, &update));
  int64_t n = x.rank ? x.dims[x.rank - 1] : 0;
  if (n < 1 || n > INT32_MAX || weight.rank != 1 || weight.dims[0] != n)
    return invalid("specrt RMSNorm: rows of %lld values, %lld weights", (long long)n,
                   weight.rank ? (long long)weight.dims[0] : 1LL);
  if (update.data && !same_shape(&x, &update))
    return invalid("specrt RMSNorm: x and update differ in shape");
  void *normed, *total;
  TRY(output(context, 0, x.dims, x.rank, &normed));
  TRY(output(context, 1, x.dims, x.rank, &total));
  int64_t rows = rows_of(&x), step = TASK / n > 1 ? TASK / n : 1;
  Norm norm = {x.data, update.data, weight.data, ((const State *)state)->epsilon,
               normed, total,       rows,        n,
               step};
  parallel_for(context, norm_rows, (size_t)((rows + step - 1) / step), &norm);
  return NULL;
}

Operator norm_operator = {
    .name = "RMSNorm",
    .inputs = {{ORT_FLOAT, ORT_REQUIRED}, {ORT_FLOAT, ORT_REQUIRED}, {ORT_FLOAT, ORT_OPTIONAL}},
    .outputs = {{ORT_FLOAT, ORT_REQUIRED}, {ORT_FLOAT, ORT_OPTIONAL}},
    .state_bytes = sizeof(State),
    .create = create,
    .compute = compute,
};
