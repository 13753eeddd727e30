#include "operator.h"

#include <stdarg.h>
#include <stdio.h>

OrtApi *ort;

OrtStatus *invalid(const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return OrtCreateStatus(ORT_INVALID_ARGUMENT, text);
}

OrtStatus *out_of_memory(size_t bytes) {
  char text[64];
  snprintf(text, sizeof text, "specrt: no memory for %zu bytes", bytes);
  return OrtCreateStatus(ORT_FAIL, text);
}

static OrtStatus *shape(const OrtValue *value, Tensor *tensor) {
  OrtShapeInfo *info;
  TRY(OrtGetTensorTypeAndShape(value, &info));
  OrtStatus *status = OrtGetTensorElementType(info, &tensor->type);
  if (!status) status = OrtGetDimensionsCount(info, &tensor->rank);
  if (!status && tensor->rank > MAX_RANK)
    status = invalid("specrt: a tensor has %zu dimensions, the most is %d", tensor->rank, MAX_RANK);
  if (!status) status = OrtGetDimensions(info, tensor->dims, tensor->rank);
  OrtReleaseShapeInfo(info);
  return status;
}

OrtStatus *input(const OrtKernelContext *context, size_t index, Tensor *tensor) {
  *tensor = (Tensor){0};
  size_t count;
  TRY(OrtKernelContextInputCount(context, &count));
  if (index >= count) return NULL;
  const OrtValue *value;
  TRY(OrtKernelContextInput(context, index, &value));
  if (!value) return NULL;
  TRY(shape(value, tensor));
  return OrtGetTensorMutableData((OrtValue *)value, &tensor->data);
}

OrtStatus *output(OrtKernelContext *context, size_t index, const int64_t *dims, size_t rank,
                  void **data) {
  *data = NULL;
  size_t count;
  TRY(OrtKernelContextOutputCount(context, &count));
  if (index >= count) return NULL;
  OrtValue *value;
  TRY(OrtKernelContextOutput(context, index, dims, rank, &value));
  return value ? OrtGetTensorMutableData(value, data) : NULL;
}

int same_shape(const Tensor *a, const Tensor *b) {
  if (a->rank != b->rank) return 0;
  for (size_t i = 0; i < a->rank; i++)
    if (a->dims[i] != b->dims[i]) return 0;
  return 1;
}

float float_or(const OrtKernelInfo *info, const char *name, float absent) {
  float value;
  OrtStatus *status = OrtKernelInfoGetFloat(info, name, &value);
  if (!status) return value;
  OrtReleaseStatus(status);
  return absent;
}

int64_t rows_of(const Tensor *tensor) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < tensor->rank; i++) rows *= tensor->dims[i];
  return rows;
}

void parallel_for(const OrtKernelContext *context, Task task, size_t count, void *argument) {
  if (count <= 1) {
    if (count) task(argument, 0);
    return;
  }
  OrtStatus *status = OrtParallelFor(context, task, count, 0, argument);
  if (!status) return;
  OrtReleaseStatus(status); /* refused before anything ran: do it here */
  for (size_t i = 0; i < count; i++) task(argument, i);
}
