/* Attention: packed queries, keys and values -> the heads' results; keys and values are appended to
 * the cache, in place where past and present are one buffer.
 *
 *   qkv (B, S, (H + 2 KV) * D)
 *   past key (B, KV, C / 16, D, 16), past value (B, KV, C, D); of int8 see attention.h
 *   entries after the call, less 1 (B)
 *   parents (B, S): the row each row follows, -1 the cache's end; without them a chain
 *   cos, sin (positions, pairs); without them nothing is rotated
 *   norms of queries and of keys (D); sinks (H)
 *
 * Outputs: (B, S, H * D), present key, present value. Attributes: see State.
 */
#include <stdlib.h>
#include <string.h>

#include "path.h"

enum { QKV, KEY, VALUE, LAST, PARENTS, COS, SIN, Q_NORM, K_NORM, SINKS, INPUTS };
enum { GROUP_TASKS = 4 };   /* at least so many tasks for a call, where the heads allow it */
enum { APPEND = 16 };       /* rows of an appending task */
enum { MOST = 1 << 24 };    /* of any dimension */

typedef struct {
  int64_t num_heads, kv_num_heads, window;
  float scale, softcap, epsilon;
} State;

typedef struct {
  Attention shape;
  Sequence *sequences;
  int batch, group; /* rows of a task */
  int groups;       /* tasks of a kv head */
  int failed;       /* some task had no memory */
} Call;

static void append(void *argument, size_t index) {
  Call *call = argument;
  const Attention *a = &call->shape;
  int pieces = (a->rows + APPEND - 1) / APPEND;
  const Sequence *sequence = call->sequences + index / (size_t)pieces;
  int first = (int)(index % (size_t)pieces) * APPEND, last = first + APPEND;
  float small[256], *scratch = small;
  const size_t floats = cache_blocks(a) * CACHE_BLOCK;
  if (floats > 256 && !(scratch = malloc(floats * sizeof *scratch))) {
    call->failed = 1;
    return;
  }
  path()->append(a, sequence, first, last < a->rows ? last : a->rows, scratch);
  if (scratch != small) free(scratch);
}

static void attend(void *argument, size_t index) {
  Call *call = argument;
  const Attention *a = &call->shape;
  size_t heads = (size_t)a->kv_heads * (size_t)call->groups;
  const Sequence *sequence = call->sequences + index / heads;
  int kv_head = (int)(index % heads) / call->groups;
  int first = (int)(index % heads) % call->groups * call->group;
  int left = a->rows * (a->heads / a->kv_heads) - first;
  int n = left < call->group ? left : call->group;
  float *scratch =
      malloc(attention_scratch(a, n, sequence->past + a->rows) * sizeof *scratch);
  if (!scratch) {
    call->failed = 1;
    return;
  }
  path()->attend(a, sequence, kv_head, first, n, scratch);
  free(scratch);
}

/* As many rows a task as are summed well together, but some tasks for every thread. */
static void split(Call *call) {
  static const int sizes[] = {12, 6, 4, 3, 2, 1};
  int rows = call->shape.rows * (call->shape.heads / call->shape.kv_heads);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    call->group = sizes[i];
    call->groups = (rows + sizes[i] - 1) / sizes[i];
    if (call->groups * call->shape.kv_heads * call->batch >= GROUP_TASKS) break;
  }
}

static int is(const Tensor *tensor, size_t rank, const int64_t *dims) {
  if (tensor->rank != rank) return 0;
  for (size_t i = 0; i < rank; i++)
    if (tensor->dims[i] != dims[i]) return 0;
  return 1;
}

static int is_vector(const Tensor *tensor, int n) {
  return !tensor->data || is(tensor, 1, (int64_t[]){n});
}

static int fits(const Attention *a, int batch, const Tensor *key, const Tensor *value) {
  const int64_t kv = a->kv_heads, capacity = a->capacity, tiles = capacity / KEYS;
  const int64_t d = a->head_dim, blocks = (int64_t)cache_blocks(a);
  if (a->cache == CACHE_INT8)
    return is(value, 4, (int64_t[]){batch, kv, capacity, blocks * CACHE_BLOCK + 4}) &&
           is(key, 6, (int64_t[]){batch, kv, tiles, blocks * (CACHE_BLOCK + 4) / 4, KEYS, 4});
  return is(value, 4, (int64_t[]){batch, kv, capacity, d}) &&
         is(key, 5, (int64_t[]){batch, kv, tiles, d, KEYS});
}

/* Check all shapes against each other. */
static OrtStatus *measure(const State *state, const Tensor *in, Call *call) {
  Attention *a = &call->shape;
  const Tensor *qkv = in + QKV, *key = in + KEY, *value = in + VALUE;
  a->heads = (int)state->num_heads, a->kv_heads = (int)state->kv_num_heads;
  a->window = (int)state->window, a->scale = state->scale;
  a->softcap = state->softcap, a->epsilon = state->epsilon;
  if (qkv->rank != 3 || value->rank != 4 || qkv->dims[0] < 1 || qkv->dims[0] > MOST ||
      qkv->dims[1] > MOST || value->dims[2] > INT32_MAX - KEYS || value->dims[2] % KEYS)
    return invalid("specrt Attention: rows of rank %zu, values of rank %zu with %lld entries",
                   qkv->rank, value->rank, value->rank == 4 ? (long long)value->dims[2] : 0LL);
  const int64_t batch = qkv->dims[0], capacity = value->dims[2];
  const int64_t heads = a->heads + 2 * (int64_t)a->kv_heads, d = qkv->dims[2] / heads;
  if (d < 1 || d > MOST || qkv->dims[2] % heads)
    return invalid("specrt Attention: rows of %lld, %d + 2 * %d heads", (long long)qkv->dims[2],
                   a->heads, a->kv_heads);
  a->rows = (int)qkv->dims[1], a->head_dim = (int)d, a->capacity = (int)capacity;
  a->cache = key->type == ORT_INT8      ? CACHE_INT8
             : key->type == ORT_FLOAT16 ? CACHE_HALF
                                        : CACHE_FLOAT;
  call->batch = (int)batch;
  if (!fits(a, call->batch, key, value))
    return invalid("specrt Attention: a cache of %lld heads, %lld entries, values of %lld does not "
                   "fit %lld sequences with %d heads of %lld",
                   (long long)value->dims[1], (long long)capacity, (long long)value->dims[3],
                   (long long)batch, a->kv_heads, (long long)d);
  if (!is(in + LAST, 1, (int64_t[]){batch}))
    return invalid("specrt Attention: lengths are not one for each of %d sequences", call->batch);
  if (in[PARENTS].data && !is(in + PARENTS, 2, (int64_t[]){batch, a->rows}))
    return invalid("specrt Attention: parents are not one for each of %d rows", a->rows);
  const Tensor *cos = in + COS, *sin = in + SIN;
  if (cos->data) {
    if (cos->rank != 2 || cos->dims[1] < 1 || 2 * cos->dims[1] > d || !sin->data ||
        !is(sin, 2, cos->dims))
      return invalid("specrt Attention: cos and sin do not fit heads of %d", a->head_dim);
    a->pairs = (int)cos->dims[1];
  }
  if (!is_vector(in + Q_NORM, a->head_dim) || !is_vector(in + K_NORM, a->head_dim) ||
      !is_vector(in + SINKS, a->heads))
    return invalid("specrt Attention: norms or sinks do not fit %d heads of %d", a->heads,
                   a->head_dim);
  a->cos = cos->data, a->sin = sin->data;
  a->q_norm = in[Q_NORM].data, a->k_norm = in[K_NORM].data, a->sinks = in[SINKS].data;
  return NULL;
}

/* What the rows of one sequence see: paths (rows,), and as many slots as their tails need. */
static OrtStatus *trace(const Call *call, const int64_t *parents, int64_t positions, int past,
                        Row *paths, int **slots) {
  const int rows = call->shape.rows;
  size_t used = 0, room = 0;
  for (int i = 0; i < rows; i++) {
    int64_t parent = parents ? parents[i] : i - 1;
    if (parent < -1 || parent >= i)
      return invalid("specrt Attention: row %d follows row %lld", i, (long long)parent);
    Row *row = paths + i;
    const Row *before = parent < 0 ? &(Row){past - 1, past, 0} : paths + parent;
    *row = (Row){before->position + 1, before->lead, used};
    if (row->position >= positions)
      return invalid("specrt Attention: position %d, the rotation has %lld", row->position,
                     (long long)positions);
    int beyond = row->position - before->lead; /* of its ancestors */
    if (!beyond && past + i == row->position) {
      row->lead++;
      continue;
    }
    if (used + (size_t)beyond + 1 > room) {
      room = 2 * (used + (size_t)beyond + 1);
      int *grown = realloc(*slots, room * sizeof *grown);
      if (!grown) return out_of_memory(room * sizeof *grown);
      *slots = grown;
    }
    if (beyond) memcpy(*slots + used, *slots + before->tail, (size_t)beyond * sizeof **slots);
    used += (size_t)beyond;
    (*slots)[used++] = past + i;
  }
  return NULL;
}

/* Outputs, with the cache before the call in the present buffers. */
static OrtStatus *present(OrtKernelContext *context, size_t index, const Tensor *past,
                          void **data) {
  TRY(output(context, index, past->dims, past->rank, data));
  if (!*data) return invalid("specrt Attention: the present cache is not asked for");
  size_t bytes = past->type == ORT_INT8      ? sizeof(int8_t)
                 : past->type == ORT_FLOAT16 ? sizeof(uint16_t)
                                             : sizeof(float);
  for (size_t i = 0; i < past->rank; i++) bytes *= (size_t)past->dims[i];
  if (*data != past->data) memcpy(*data, past->data, bytes);
  return NULL;
}

static OrtStatus *run(OrtKernelContext *context, const Tensor *in, Call *call, Row *paths,
                      int **slots) {
  const Attention *a = &call->shape;
  const size_t rows = (size_t)a->rows, d = (size_t)a->head_dim, heads = (size_t)a->heads;
  void *out, *keys, *values;
  int64_t dims[] = {call->batch, a->rows, a->heads * (int64_t)a->head_dim};
  TRY(output(context, 0, dims, 3, &out));
  TRY(present(context, 1, in + KEY, &keys));
  TRY(present(context, 2, in + VALUE, &values));
  const size_t entries = (size_t)a->kv_heads * (size_t)a->capacity;
  const size_t width = (heads + 2 * (size_t)a->kv_heads) * d;
  const int64_t *parents = in[PARENTS].data;
  int64_t positions = a->cos ? in[COS].dims[0] : INT32_MAX;
  for (int b = 0; b < call->batch; b++) {
    int64_t past = (int64_t)((const int32_t *)in[LAST].data)[b] + 1 - a->rows;
    if (past < 0 || past + a->rows > a->capacity)
      return invalid("specrt Attention: %lld + %d entries in a cache of %d", (long long)past,
                     a->rows, a->capacity);
    Row *own = paths + (size_t)b * rows;
    TRY(trace(call, parents ? parents + (size_t)b * rows : NULL, positions, (int)past, own,
              slots + b));
    call->sequences[b] = (Sequence){
        .qkv = (const float *)in[QKV].data + (size_t)b * rows * width,
        .keys = (char *)keys + (size_t)b * entries * key_bytes(a),
        .values = (char *)values + (size_t)b * entries * value_bytes(a),
        .out = (float *)out + (size_t)b * rows * heads * d,
        .past = (int)past,
        .paths = own,
        .slots = slots[b],
    };
  }
  if (!rows) return NULL;
  split(call);
  size_t pieces = (rows + APPEND - 1) / APPEND, batch = (size_t)call->batch;
  parallel_for(context, append, batch * pieces, call);
  parallel_for(context, attend, batch * (size_t)a->kv_heads * (size_t)call->groups, call);
  return call->failed ? out_of_memory(attention_scratch(a, call->group, a->capacity)) : NULL;
}

static OrtStatus *compute(const void *state, OrtKernelContext *context) {
  Tensor in[INPUTS];
  Call call = {0};
  for (size_t i = 0; i < INPUTS; i++) TRY(input(context, i, in + i));
  TRY(measure(state, in, &call));
  const size_t batch = (size_t)call.batch, rows = (size_t)call.shape.rows;
  call.sequences = calloc(batch, sizeof *call.sequences);
  Row *paths = malloc(batch * rows * sizeof *paths + 1);
  int **slots = calloc(batch, sizeof *slots);
  OrtStatus *status = call.sequences && paths && slots
                          ? run(context, in, &call, paths, slots)
                          : out_of_memory(batch * rows * sizeof *paths);
  for (size_t b = 0; slots && b < batch; b++) free(slots[b]);
  free(slots);
  free(paths);
  free(call.sequences);
  return status;
}

static OrtStatus *create(void *state, const OrtKernelInfo *info) {
  State *s = state;
  TRY(OrtKernelInfoGetInt(info, "num_heads", &s->num_heads));
  TRY(OrtKernelInfoGetInt(info, "kv_num_heads", &s->kv_num_heads));
  TRY(OrtKernelInfoGetInt(info, "window", &s->window));
  TRY(OrtKernelInfoGetFloat(info, "scale", &s->scale));
  TRY(OrtKernelInfoGetFloat(info, "softcap", &s->softcap));
  TRY(OrtKernelInfoGetFloat(info, "epsilon", &s->epsilon));
  if (s->kv_num_heads < 1 || s->num_heads < 1 || s->num_heads > MOST / 4 ||
      s->num_heads % s->kv_num_heads || s->window < 0 || s->window > INT32_MAX)
    return invalid("specrt Attention: %lld heads, %lld of keys, a window of %lld",
                   (long long)s->num_heads, (long long)s->kv_num_heads, (long long)s->window);
  return NULL;
}

#define REQUIRED(TYPE) {TYPE, ORT_REQUIRED}
#define OPTIONAL(TYPE) {TYPE, ORT_OPTIONAL}
#define ATTENTION_OF(CACHE) \
  {.name = "Attention", \
   .inputs = {REQUIRED(ORT_FLOAT), REQUIRED(CACHE), REQUIRED(CACHE), REQUIRED(ORT_INT32), \
              OPTIONAL(ORT_INT64), OPTIONAL(ORT_FLOAT), OPTIONAL(ORT_FLOAT), OPTIONAL(ORT_FLOAT), \
              OPTIONAL(ORT_FLOAT), OPTIONAL(ORT_FLOAT)}, \
   .outputs = {REQUIRED(ORT_FLOAT), REQUIRED(CACHE), REQUIRED(CACHE)}, \
   .state_bytes = sizeof(State), \
   .create = create, \
   .compute = compute}
Operator attention_operator = ATTENTION_OF(ORT_FLOAT);
Operator attention_half_operator = ATTENTION_OF(ORT_FLOAT16);
Operator attention_int8_operator = ATTENTION_OF(ORT_INT8);
