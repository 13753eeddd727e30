/* What an operator is made of, and what it may use. An operator is one `Operator` value in its own
 * file, named in the table of library.c.
 */
#ifndef SPECRT_OPERATOR_H
#define SPECRT_OPERATOR_H
#include "ort_abi.h"

enum { MAX_RANK = 8, MAX_ARGUMENTS = 16 };

extern OrtApi *ort; /* set once, before any operator runs */

typedef struct {
  int type;     /* ORT_FLOAT, ... */
  int optional; /* ORT_REQUIRED or ORT_OPTIONAL */
} Argument;

/* `inputs` and `outputs` end with the first type 0. */
typedef struct {
  OrtCustomOp base; /* first: ONNX Runtime hands it back; filled in by library.c */
  const char *name;
  Argument inputs[MAX_ARGUMENTS], outputs[MAX_ARGUMENTS];
  size_t state_bytes; /* a zeroed block of this size is the kernel's own state */
  OrtStatus *(*create)(void *state, const OrtKernelInfo *); /* reads attributes; NULL: none */
  OrtStatus *(*compute)(const void *state, OrtKernelContext *);
} Operator;

/* A tensor of the call; data is NULL where an optional one is absent. */
typedef struct {
  void *data;
  int type;
  size_t rank;
  int64_t dims[MAX_RANK];
} Tensor;

#define TRY(call) \
  do { \
    OrtStatus *status_ = (call); \
    if (status_) return status_; \
  } while (0)

/* An error of the caller, printf style: what, both values. */
OrtStatus *invalid(const char *format, ...);
OrtStatus *out_of_memory(size_t bytes);

OrtStatus *input(const OrtKernelContext *, size_t index, Tensor *);
OrtStatus *output(OrtKernelContext *, size_t index, const int64_t *dims, size_t rank, void **data);

int same_shape(const Tensor *, const Tensor *);

/* An attribute that may be absent. */
float float_or(const OrtKernelInfo *, const char *name, float absent);

/* Product of all dimensions but the last; 0 if one of them is. */
int64_t rows_of(const Tensor *);

typedef void (*Task)(void *argument, size_t index);

/* task(argument, 0 .. count - 1) on ONNX Runtime's own threads; returns when all are done. */
void parallel_for(const OrtKernelContext *, Task task, size_t count, void *argument);

#endif
