/* The part of ONNX Runtime's C ABI that custom operators need, declared from its documentation.
 *
 * OrtApi is a table of functions that only ever grows at its end, so a position never changes its
 * meaning. Everything named here is in the table of version 17 (ONNX Runtime 1.17) and later; the
 * runtime hands out that version or, if it no longer can, nothing, and then nothing is registered.
 */
#ifndef SPECRT_ORT_ABI_H
#define SPECRT_ORT_ABI_H
#include <stddef.h>
#include <stdint.h>

enum { ORT_ABI_VERSION = 17 };

typedef struct OrtStatus OrtStatus; /* NULL is success */
typedef struct OrtValue OrtValue;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtShapeInfo OrtShapeInfo; /* OrtTensorTypeAndShapeInfo */
typedef struct OrtShapeContext OrtShapeContext;

typedef void (*OrtFunction)(void);
typedef const OrtFunction OrtApi; /* OrtApi *: the table's first entry */
typedef struct {
  OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

enum { /* ONNXTensorElementDataType */
  ORT_FLOAT = 1, ORT_UINT8 = 2, ORT_INT8 = 3, ORT_INT32 = 6, ORT_INT64 = 7, ORT_FLOAT16 = 10
};
enum { ORT_REQUIRED = 0, ORT_OPTIONAL = 1 }; /* OrtCustomOpInputOutputCharacteristic */
enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 }; /* OrtErrorCode */

typedef struct OrtCustomOp OrtCustomOp;
struct OrtCustomOp {
  uint32_t version;
  void *(*CreateKernel)(const OrtCustomOp *, OrtApi *, const OrtKernelInfo *);
  const char *(*GetName)(const OrtCustomOp *);
  const char *(*GetExecutionProviderType)(const OrtCustomOp *);
  int (*GetInputType)(const OrtCustomOp *, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp *);
  int (*GetOutputType)(const OrtCustomOp *, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp *);
  void (*KernelCompute)(void *, OrtKernelContext *);
  void (*KernelDestroy)(void *);
  int (*GetInputCharacteristic)(const OrtCustomOp *, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp *, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp *, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp *);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp *);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp *);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *);
  OrtStatus *(*CreateKernelV2)(const OrtCustomOp *, OrtApi *, const OrtKernelInfo *, void **);
  OrtStatus *(*KernelComputeV2)(void *, OrtKernelContext *);
  OrtStatus *(*InferOutputShapeFn)(const OrtCustomOp *, OrtShapeContext *);
  int (*GetStartVersion)(const OrtCustomOp *);
  int (*GetEndVersion)(const OrtCustomOp *);
  void *newer[8]; /* members of later versions; not read while version is 17 */
};

/* A function of the table by its position; `ort` is the table (operator.h). */
#define ORT_AT(position, result, ...) ((result(*)(__VA_ARGS__))ort[position])

#define OrtCreateStatus ORT_AT(0, OrtStatus *, int, const char *)
#define OrtCreateCustomOpDomain ORT_AT(26, OrtStatus *, const char *, OrtCustomOpDomain **)
#define OrtCustomOpDomain_Add ORT_AT(27, OrtStatus *, OrtCustomOpDomain *, const OrtCustomOp *)
#define OrtAddCustomOpDomain ORT_AT(28, OrtStatus *, OrtSessionOptions *, OrtCustomOpDomain *)
#define OrtGetTensorMutableData ORT_AT(51, OrtStatus *, OrtValue *, void **)
#define OrtGetTensorElementType ORT_AT(60, OrtStatus *, const OrtShapeInfo *, int *)
#define OrtGetDimensionsCount ORT_AT(61, OrtStatus *, const OrtShapeInfo *, size_t *)
#define OrtGetDimensions ORT_AT(62, OrtStatus *, const OrtShapeInfo *, int64_t *, size_t)
#define OrtGetTensorTypeAndShape ORT_AT(65, OrtStatus *, const OrtValue *, OrtShapeInfo **)
#define OrtKernelInfoGetFloat ORT_AT(85, OrtStatus *, const OrtKernelInfo *, const char *, float *)
#define OrtKernelInfoGetInt ORT_AT(86, OrtStatus *, const OrtKernelInfo *, const char *, int64_t *)
#define OrtKernelContextInputCount ORT_AT(88, OrtStatus *, const OrtKernelContext *, size_t *)
#define OrtKernelContextOutputCount ORT_AT(89, OrtStatus *, const OrtKernelContext *, size_t *)
#define OrtKernelContextInput \
  ORT_AT(90, OrtStatus *, const OrtKernelContext *, size_t, const OrtValue **)
#define OrtKernelContextOutput \
  ORT_AT(91, OrtStatus *, OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **)
#define OrtReleaseStatus ORT_AT(93, void, OrtStatus *)
#define OrtReleaseShapeInfo ORT_AT(99, void, OrtShapeInfo *)
#define OrtParallelFor \
  ORT_AT(274, OrtStatus *, const OrtKernelContext *, void (*)(void *, size_t), size_t, size_t, void *)

#endif
