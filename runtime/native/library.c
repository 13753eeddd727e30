/* The library's entry: registers every operator of the table in the domain `specrt`. */
#include <stdlib.h>

#include "operator.h"
#include "path.h"

extern Operator matmul_operator, embedding_operator, gate_operator, norm_operator,
    attention_operator, attention_half_operator, attention_int8_operator,
    feed_forward_operator;

static Operator *const operators[] = {
    &matmul_operator,
    &embedding_operator,
    &gate_operator,
    &norm_operator,
    &attention_operator,
    &attention_half_operator,
    &attention_int8_operator,
    &feed_forward_operator,
};

typedef struct {
  const Operator *operator_;
  unsigned char *state;
} Kernel;

static const Operator *self(const OrtCustomOp *op) { return (const Operator *)(const void *)op; }
static const char *name(const OrtCustomOp *op) { return self(op)->name; }
static const char *provider(const OrtCustomOp *op) { return (void)op, (const char *)NULL; }
static int input_type(const OrtCustomOp *op, size_t i) { return self(op)->inputs[i].type; }
static int output_type(const OrtCustomOp *op, size_t i) { return self(op)->outputs[i].type; }
static int input_kind(const OrtCustomOp *op, size_t i) { return self(op)->inputs[i].optional; }
static int output_kind(const OrtCustomOp *op, size_t i) { return self(op)->outputs[i].optional; }
static int memory(const OrtCustomOp *op, size_t i) { return (void)op, (void)i, 0; }
static int one(const OrtCustomOp *op) { return (void)op, 1; }
static int any(const OrtCustomOp *op) { return (void)op, INT32_MAX; }

static size_t count(const Argument *arguments) {
  size_t n = 0;
  while (n < MAX_ARGUMENTS && arguments[n].type) n++;
  return n;
}
static size_t input_count(const OrtCustomOp *op) { return count(self(op)->inputs); }
static size_t output_count(const OrtCustomOp *op) { return count(self(op)->outputs); }

static void destroy(void *kernel) {
  if (kernel) free(((Kernel *)kernel)->state);
  free(kernel);
}

static OrtStatus *create(const OrtCustomOp *op, OrtApi *api, const OrtKernelInfo *info,
                         void **kernel) {
  (void)api;
  Kernel *made = calloc(1, sizeof *made);
  *kernel = NULL;
  if (!made) return out_of_memory(sizeof *made);
  made->operator_ = self(op);
  made->state = calloc(1, self(op)->state_bytes + 1);
  OrtStatus *status = made->state ? NULL : out_of_memory(self(op)->state_bytes);
  if (!status && self(op)->create) status = self(op)->create(made->state, info);
  if (status)
    destroy(made);
  else
    *kernel = made;
  return status;
}

static OrtStatus *compute(void *kernel, OrtKernelContext *context) {
  const Kernel *k = kernel;
  return k->operator_->compute(k->state, context);
}

static const OrtCustomOp callbacks = {
    .version = ORT_ABI_VERSION,
    .GetName = name,
    .GetExecutionProviderType = provider,
    .GetInputType = input_type,
    .GetInputTypeCount = input_count,
    .GetOutputType = output_type,
    .GetOutputTypeCount = output_count,
    .KernelDestroy = destroy,
    .GetInputCharacteristic = input_kind,
    .GetOutputCharacteristic = output_kind,
    .GetInputMemoryType = memory,
    .GetVariadicInputMinArity = one,
    .GetVariadicInputHomogeneity = one,
    .GetVariadicOutputMinArity = one,
    .GetVariadicOutputHomogeneity = one,
    .CreateKernelV2 = create,
    .KernelComputeV2 = compute,
    .GetStartVersion = one,
    .GetEndVersion = any,
};

#ifdef _WIN32
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

/* Called by ONNX Runtime for each SessionOptions; runtime/native.py lets one in at a time. */
EXPORTED OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  static OrtCustomOpDomain *domain;
  OrtApi *table = base->GetApi(ORT_ABI_VERSION);
  if (!table) return NULL; /* native.py has checked the version; nothing can be said without it */
  if (!domain) {
    ort = table;
    OrtCustomOpDomain *made;
    TRY(OrtCreateCustomOpDomain("specrt", &made));
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
      operators[i]->base = callbacks;
      TRY(OrtCustomOpDomain_Add(made, &operators[i]->base));
    }
    domain = made;
  }
  return OrtAddCustomOpDomain(options, domain);
}

/* The instruction path in use: "avx512-vnni", "avx2" or "portable". */
EXPORTED const char *specrt_path(void) { return path()->name; }

/* Use the named path, for tests; NULL chooses the best. 0 if this processor cannot run it. */
EXPORTED int specrt_choose_path(const char *wanted) { return choose_path(wanted); }
