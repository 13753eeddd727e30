/* Attention, written once over a vector of 16 floats. A path defines V16, v16_load, v16_store, the
 * same for float16 as v16_load_half and v16_store_half (to the nearest, ties to even),
 * v16_add_scaled (acc + x * scale, rounded twice) and WIDEST: how many of them it sums at a time.
 *
 * Scores and results are one kind of sum: over the numbers of a head with 16 keys side by side, then
 * over the entries of a path with 16 numbers side by side. Each lane adds in one order, so neither
 * the rows nor the vectors in work together change its bits.
 */
#ifndef SPECRT_ATTEND_H
#define SPECRT_ATTEND_H
#include "attention.h"
#include "half.h"
#include "rows.h"

/* c[row][unit] += a[row][i] * b[i][unit], in order of i; a unit is 16 numbers of b and c. */
typedef struct {
  const float *a;
  const void *b; /* float, or float16 where `half` is said */
  float *c;
  size_t a_row, b_at, b_step, b_unit, c_row;
  int n;
} Sum;

INLINE V16 load_from(const void *x, size_t at, int half) {
  return half ? v16_load_half((const uint16_t *)x + at) : v16_load((const float *)x + at);
}

/* n floats to float16, by whole vectors. */
INLINE void to_halves(const float *x, uint16_t *to, size_t n) {
  size_t i = 0;
  for (; i + LANES <= n; i += LANES) v16_store_half(to + i, v16_load(x + i));
  if (i < n) {
    float rest[LANES] = {0};
    uint16_t halves[LANES];
    memcpy(rest, x + i, (n - i) * sizeof *x);
    v16_store_half(halves, v16_load(rest));
    memcpy(to + i, halves, (n - i) * sizeof *to);
  }
}

INLINE float number_at(const void *x, size_t at, int half) {
  return half ? half_to_float(((const uint16_t *)x)[at]) : ((const float *)x)[at];
}

INLINE void add_up(const Sum *s, int rows, int units, int half) {
  V16 sum[6][8];
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int u = 0; u < units; u++)
      sum[r][u] = v16_load(s->c + (size_t)r * s->c_row + u * LANES);
  for (int i = 0; i < s->n; i++) {
    V16 b[8];
#pragma GCC unroll 8
    for (int u = 0; u < units; u++)
      b[u] = load_from(s->b, s->b_at + (size_t)i * s->b_step + (size_t)u * s->b_unit, half);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
      float a = s->a[(size_t)r * s->a_row + (size_t)i];
#pragma GCC unroll 8
      for (int u = 0; u < units; u++) sum[r][u] = v16_add_scaled(sum[r][u], b[u], a);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int u = 0; u < units; u++)
      v16_store(s->c + (size_t)r * s->c_row + u * LANES, sum[r][u]);
}

INLINE Sum further(const Sum *s, int row, int unit) {
  Sum moved = *s;
  moved.a += (size_t)row * s->a_row;
  moved.b_at += (size_t)unit * s->b_unit;
  moved.c += (size_t)row * s->c_row + (size_t)unit * LANES;
  return moved;
}

#define UNITS_OF(ROWS) \
  (WIDEST / (ROWS) >= 8 ? 8 : WIDEST / (ROWS) >= 4 ? 4 : WIDEST / (ROWS) >= 2 ? 2 : 1)
#define ADD_UP_ROWS(ROWS) \
  for (; rows - row >= ROWS; row += ROWS) { \
    int unit = 0; \
    for (; units - unit >= UNITS_OF(ROWS); unit += UNITS_OF(ROWS)) { \
      Sum part = further(s, row, unit); \
      add_up(&part, ROWS, UNITS_OF(ROWS), half); \
    } \
    for (; unit < units; unit++) { \
      Sum part = further(s, row, unit); \
      add_up(&part, ROWS, 1, half); \
    } \
  }

INLINE void add_up_each(const Sum *s, int rows, int units, int half) {
  int row = 0;
  ADD_UP_ROWS(6)
  ADD_UP_ROWS(4)
  ADD_UP_ROWS(3)
  ADD_UP_ROWS(2)
  ADD_UP_ROWS(1)
}

static void add_up_all(const Sum *s, int rows, int units, int half) {
  if (half)
    add_up_each(s, rows, units, 1);
  else
    add_up_each(s, rows, units, 0);
}

/* out = x, normed if it has a norm, rotated to its position, times scale. */
INLINE void prepare(const Attention *a, const float *x, const float *norm, int position,
                    float scale, float *out) {
  const int n = a->head_dim, pairs = a->pairs;
  if (norm)
    norm_row(x, NULL, norm, a->epsilon, n, NULL, out);
  else
    memcpy(out, x, (size_t)n * sizeof *out);
  const float *cos = a->cos + (size_t)position * (size_t)pairs;
  const float *sin = a->sin + (size_t)position * (size_t)pairs;
  float *first = out, *second = out + pairs;
  for (int i = 0; i < pairs; i++) {
    float turned = first[i] * cos[i] - second[i] * sin[i];
    second[i] = second[i] * cos[i] + first[i] * sin[i];
    first[i] = turned;
  }
  if (scale != 1.0f)
    for (int i = 0; i < n; i++) out[i] *= scale;
}

/* Scores to weights whose sum's inverse is returned; a NaN among them makes all of it NaN. */
INLINE float soften(float *p, int n, float softcap, const float *sink) {
  if (softcap > 0)
    for (int i = 0; i < n; i++) { /* tanh(x) = 1 - 2 / (exp(2x) + 1) */
      float x = p[i] / softcap;
      p[i] = x == x ? softcap * (1.0f - 2.0f / (exp_clamped(2.0f * x) + 1.0f)) : x;
    }
  float lane[LANES], sum = 0, top = sink ? *sink : -INFINITY;
  for (int j = 0; j < LANES; j++) lane[j] = -INFINITY;
  int i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) lane[j] = p[i + j] > lane[j] ? p[i + j] : lane[j];
  for (int j = 0; i + j < n; j++) lane[j] = p[i + j] > lane[j] ? p[i + j] : lane[j];
  for (int j = 0; j < LANES; j++) top = lane[j] > top ? lane[j] : top;
  for (i = 0; i < n; i++) {
    float x = p[i] - top;
    p[i] = x == x ? exp_clamped(x) : x;
  }
  for (int j = 0; j < LANES; j++) lane[j] = 0;
  for (i = 0; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) lane[j] += p[i + j];
  for (int j = 0; i + j < n; j++) lane[j] += p[i + j];
  for (int j = 0; j < LANES; j++) sum += lane[j];
  if (sink) sum += exp_clamped(*sink - top);
  return 1.0f / sum;
}

/* out[row] += weights[row][i] * values[first + i] for n entries that follow each other. */
INLINE void weigh(const Attention *a, const float *weights, size_t stride, const void *values,
                  size_t first, int n, float *out, int rows) {
  const size_t width = (size_t)a->head_dim;
  if (n <= 0) return;
  Sum sum = {.a = weights, .b = values, .c = out, .n = n};
  sum.a_row = stride, sum.b_step = width, sum.b_unit = LANES, sum.c_row = width;
  sum.b_at = first * width;
  add_up_all(&sum, rows, a->head_dim / LANES, a->half);
  for (size_t d = width / LANES * LANES; d < width; d++)
    for (size_t r = 0; r < (size_t)rows; r++)
      for (size_t i = 0; i < (size_t)n; i++)
        out[r * width + d] += weights[r * stride + i] * number_at(values, (first + i) * width + d, a->half);
}

INLINE int first_seen(const Attention *a, const Row *row) {
  return a->window && row->position >= a->window ? row->position - a->window + 1 : 0;
}

/* The cache's entry of token i of a row's path, i at its lead or after. */
INLINE int entry_of(const Sequence *s, const Row *row, int i) {
  return s->slots[row->tail + (size_t)(i - row->lead)];
}

INLINE int max_int(int a, int b) { return a > b ? a : b; }
INLINE int min_int(int a, int b) { return a < b ? a : b; }

/* Rows first .. first + n - 1 of those that share a kv head, heads of a token side by side. */
static void attend(const Attention *a, const Sequence *s, int kv_head, int first, int n,
                        float *scratch) {
  const int width = a->head_dim, group = a->heads / a->kv_heads;
  const size_t d = (size_t)width, kv = (size_t)kv_head;
  const size_t row_width = (size_t)(a->heads + 2 * a->kv_heads) * d;
  int low = s->past + a->rows, high = 0, shared_low = 0, shared_high = low;
  for (int r = 0; r < n; r++) {
    const int token = (first + r) / group, seen = first_seen(a, s->paths + token);
    const int head = kv_head * group + (first + r) % group;
    low = min_int(low, seen);
    high = max_int(high, s->past + token + 1);
    shared_low = max_int(shared_low, seen);
    shared_high = min_int(shared_high, s->paths[token].lead);
    prepare(a, s->qkv + (size_t)token * row_width + (size_t)head * d, a->q_norm,
            s->paths[token].position, a->scale, scratch + (size_t)r * d);
  }
  if (shared_low >= shared_high) shared_low = shared_high = 0;
  low = low / KEYS * KEYS;
  const int tiles = (high - low + KEYS - 1) / KEYS;
  const size_t stride = (size_t)tiles * KEYS;
  float *out = scratch + (size_t)n * d, *scores = out + (size_t)n * d;
  memset(out, 0, (size_t)n * (d + stride) * sizeof *out);

  const size_t start = kv * (size_t)a->capacity; /* of this head's values */
  Sum sum = {.a = scratch, .b = s->keys, .c = scores, .n = width};
  sum.b_at = (start + (size_t)low) * d;
  sum.a_row = d, sum.b_step = KEYS, sum.b_unit = d * KEYS, sum.c_row = stride;
  add_up_all(&sum, n, tiles, a->half);

  float *inverse = scratch; /* the queries are done with */
  for (int r = 0; r < n; r++) {
    const Row *row = s->paths + (first + r) / group;
    const int head = kv_head * group + (first + r) % group, seen = first_seen(a, row);
    float *p = scores + (size_t)r * stride;
    for (int i = max_int(row->lead, seen); i <= row->position; i++)
      p[i - low] = p[entry_of(s, row, i) - low];
    inverse[r] = soften(p + (seen - low), row->position + 1 - seen, a->softcap,
                        a->sinks ? a->sinks + head : NULL);
    weigh(a, p + (seen - low), stride, s->values, start + (size_t)seen, shared_low - seen,
          out + (size_t)r * d, 1);
  }
  weigh(a, scores + max_int(shared_low - low, 0), stride, s->values, start + (size_t)shared_low,
        shared_high - shared_low, out, n);
  for (int r = 0; r < n; r++) {
    const int token = (first + r) / group, head = kv_head * group + (first + r) % group;
    const Row *row = s->paths + token;
    float *p = scores + (size_t)r * stride, *o = out + (size_t)r * d;
    int i = max_int(shared_high, first_seen(a, row));
    weigh(a, p + (i - low), stride, s->values, start + (size_t)i, row->lead - i, o, 1);
    for (i = max_int(i, row->lead); i <= row->position; i++)
      weigh(a, p + (i - low), stride, s->values, start + (size_t)entry_of(s, row, i), 1, o, 1);
    float *to = s->out + ((size_t)token * (size_t)a->heads + (size_t)head) * d;
    for (int j = 0; j < width; j++) to[j] = o[j] * inverse[r];
  }
}

/* Row `token` of a sequence becomes an entry of its cache. scratch: (head_dim,) */
INLINE void append_row(const Attention *a, const Sequence *s, int token, float *scratch) {
  const size_t d = (size_t)a->head_dim, entry = (size_t)(s->past + token);
  const size_t heads = (size_t)a->heads, row_width = (heads + 2 * (size_t)a->kv_heads) * d;
  const float *key = s->qkv + (size_t)token * row_width + heads * d;
  for (int head = 0; head < a->kv_heads; head++, key += d) {
    prepare(a, key, a->k_norm, s->paths[token].position, 1.0f, scratch);
    const float *value = key + (size_t)a->kv_heads * d;
    const size_t before = (size_t)head * (size_t)a->capacity, value_at = (before + entry) * d;
    const size_t key_at = (before + entry / KEYS * KEYS) * d + entry % KEYS;
    if (a->half) {
      uint16_t *keys = s->keys;
      to_halves(value, (uint16_t *)s->values + value_at, d);
      for (size_t i = 0; i < d; i += LANES) {
        uint16_t part[LANES];
        to_halves(scratch + i, part, d - i < LANES ? d - i : LANES);
        for (size_t j = 0; j < LANES && i + j < d; j++) keys[key_at + (i + j) * KEYS] = part[j];
      }
    } else {
      float *keys = s->keys;
      memcpy((float *)s->values + value_at, value, d * sizeof *value);
      for (size_t i = 0; i < d; i++) keys[key_at + i * KEYS] = scratch[i];
    }
  }
}

static void append(const Attention *a, const Sequence *s, int first, int last, float *scratch) {
  for (int token = first; token < last; token++) append_row(a, s, token, scratch);
}

#endif
