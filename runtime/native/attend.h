/* Attention, written once over a vector of 16 floats. A path defines V16, v16_load, v16_store, the
 * same for float16 as v16_load_half and v16_store_half (to the nearest, ties to even),
 * v16_load_codes (bytes less a zero code), v16_add_scaled (acc + x * scale, rounded twice) and
 * WIDEST: how many of them it sums at a time; for int8 keys round_block and what path_body.h asks
 * for.
 *
 * Scores and results are one kind of sum: over the numbers of a head with 16 keys side by side,
 * then over the entries of a path with 16 numbers side by side. Each lane adds in one order, so
 * neither the rows nor the vectors in work together change its bits. Scores over int8 keys are sums
 * of integers for each block of 32, and then a sum over the blocks.
 */
#ifndef SPECRT_ATTEND_H
#define SPECRT_ATTEND_H
#include "attention.h"
#include "half.h"
#include "prefetch.h"
#include "rows.h"

enum { KEY_TILES_AHEAD = 8, VALUES_AHEAD = 24 }; /* of the cache, fetched before their use */

/* c[row][unit] += a[row][i] * b[i][unit], in order of i; a unit is 16 numbers of b and c. b is
 * fetched `ahead` numbers before its use. */
typedef struct {
  const float *a;
  const void *b; /* of the type of a cache that is said */
  float *c;
  size_t a_row, b_at, b_step, b_unit, c_row, ahead;
  int n;
} Sum;

INLINE size_t number_bytes(int cache) {
  return cache == CACHE_INT8 ? 1 : cache ? sizeof(uint16_t) : sizeof(float);
}

INLINE V16 load_from(const void *x, size_t at, int cache) {
  if (cache == CACHE_INT8) return v16_load_codes((const uint8_t *)x + at, zero_code(EIGHT));
  return cache ? v16_load_half((const uint16_t *)x + at) : v16_load((const float *)x + at);
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

INLINE float number_at(const void *x, size_t at, int cache) {
  if (cache == CACHE_INT8) return (float)(((const uint8_t *)x)[at] - zero_code(EIGHT));
  return cache ? half_to_float(((const uint16_t *)x)[at]) : ((const float *)x)[at];
}

INLINE void add_up(const Sum *s, int rows, int units, int cache) {
  V16 sum[6][8];
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int u = 0; u < units; u++)
      sum[r][u] = v16_load(s->c + (size_t)r * s->c_row + u * LANES);
  for (int i = 0; i < s->n; i++) {
    V16 b[8];
#pragma GCC unroll 8
    for (int u = 0; u < units; u++) {
      const size_t at = s->b_at + (size_t)i * s->b_step + (size_t)u * s->b_unit;
      b[u] = load_from(s->b, at, cache);
      fetch((const uint8_t *)s->b + (at + s->ahead) * number_bytes(cache));
    }
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
      add_up(&part, ROWS, UNITS_OF(ROWS), cache); \
    } \
    for (; unit < units; unit++) { \
      Sum part = further(s, row, unit); \
      add_up(&part, ROWS, 1, cache); \
    } \
  }

INLINE void add_up_each(const Sum *s, int rows, int units, int cache) {
  int row = 0;
  ADD_UP_ROWS(6)
  ADD_UP_ROWS(4)
  ADD_UP_ROWS(3)
  ADD_UP_ROWS(2)
  ADD_UP_ROWS(1)
}

static void add_up_all(const Sum *s, int rows, int units, int cache) {
  if (cache == CACHE_INT8)
    add_up_each(s, rows, units, CACHE_INT8);
  else if (cache == CACHE_HALF)
    add_up_each(s, rows, units, CACHE_HALF);
  else
    add_up_each(s, rows, units, CACHE_FLOAT);
}

/* Scores of a few queries (rows, head_dim), rounded to int8 in blocks as the keys are, with the
 * entries of `tiles` key tiles. rounded: scratch. */
INLINE void score(const Attention *a, const float *queries, const uint8_t *tile, int tiles,
                  float *out, size_t stride, void *rounded, int rows) {
  const int blocks = (int)cache_blocks(a), count = blocks * rows;
  float *scales = rounded;
  int32_t *starts = (int32_t *)(scales + count);
  int8_t *codes = (int8_t *)(starts + count);
  for (int i = 0; i < count; i++) {
    const int row = i % rows, first = i / rows * BLOCK, left = a->head_dim - first;
    float block[BLOCK] = {0};
    int32_t sums[2];
    memcpy(block, queries + row * a->head_dim + first,
           (size_t)(left < BLOCK ? left : BLOCK) * sizeof *block);
    round_block(block, codes + i * BLOCK, scales + i, sums);
    starts[i] = -zero_code(EIGHT) * (sums[0] + sums[1]);
  }
  for (int t = 0; t < tiles; t++, tile += KEYS * key_bytes(a)) {
    const uint8_t *steps = tile + blocks * run_bytes(EIGHT);
    Vector total[PARTS][GROUP];
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++)
#pragma GCC unroll 6
      for (int m = 0; m < rows; m++) total[p][m] = v_all(0.0f);
    for (int b = 0; b < blocks; b++) {
      prefetch(tile + b * run_bytes(EIGHT), run_bytes(EIGHT) / 64);
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; p++) {
        Ints sums[GROUP];
        dot(tile + b * run_bytes(EIGHT) + 4 * WIDTH * p, codes + b * rows * BLOCK,
            starts + b * rows, EIGHT, rows, sums, NULL);
        Vector step = v_load((const float *)(const void *)steps + b * KEYS + p * WIDTH);
#pragma GCC unroll 6
        for (int m = 0; m < rows; m++) {
          Vector both = v_mul(step, v_all(scales[b * rows + m]));
          total[p][m] = v_add(total[p][m], v_mul(v_float(sums[m]), both));
        }
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++)
#pragma GCC unroll 6
      for (int m = 0; m < rows; m++)
        v_store(out + (size_t)m * stride + t * KEYS + p * WIDTH, total[p][m]);
  }
}

#define SCORE_ROWS(ROWS) \
  for (; rows - row >= ROWS; row += ROWS) \
    score(a, queries + row * a->head_dim, tile, tiles, out + (size_t)row * stride, stride, \
          rounded, ROWS);

static void score_all(const Attention *a, const float *queries, int rows, const uint8_t *tile,
                      int tiles, float *out, size_t stride, void *rounded) {
  int row = 0;
#if GROUP >= 6
  SCORE_ROWS(6)
#endif
  SCORE_ROWS(4)
  SCORE_ROWS(3)
  SCORE_ROWS(2)
  SCORE_ROWS(1)
}

/* out = x, normed if it has a norm, rotated to its position, times scale. */
INLINE void prepare(const Attention *a, const float *x, const float *norm, int position,
                    float scale, float *out) {
  const int n = a->head_dim, pairs = a->pairs;
  if (norm)
    norm_row(x, NULL, norm, inverse_rms_row(x, NULL, n, a->epsilon), n, NULL, out);
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
  const size_t step = a->cache == CACHE_INT8 ? value_bytes(a) : width;
  if (n <= 0) return;
  Sum sum = {.a = weights, .b = values, .c = out, .n = n};
  sum.a_row = stride, sum.b_step = step, sum.b_unit = LANES, sum.c_row = width;
  sum.b_at = first * step, sum.ahead = VALUES_AHEAD * step;
  add_up_all(&sum, rows, a->head_dim / LANES, a->cache);
  for (size_t d = width / LANES * LANES; d < width; d++)
    for (size_t r = 0; r < (size_t)rows; r++)
      for (size_t i = 0; i < (size_t)n; i++)
        out[r * width + d] +=
            weights[r * stride + i] * number_at(values, (first + i) * step + d, a->cache);
}

INLINE int first_seen(const Attention *a, const Row *row) {
  return a->window && row->position >= a->window ? row->position - a->window + 1 : 0;
}

/* The cache's entry of token i of a row's path, i at its lead or after. */
INLINE int entry_of(const Sequence *s, const Row *row, int i) {
  return s->slots[row->tail + (size_t)(i - row->lead)];
}

/* Weights p[0 ..] of a row's path from token `from` on, times the scales of their int8 values;
 * scales: of the entries from `low` on. */
INLINE void weigh_scales(const Sequence *s, const Row *row, float *p, int from, const float *scales,
                         int low) {
  int i = from;
  for (; i < row->lead; i++) p[i - from] *= scales[i - low];
  for (; i <= row->position; i++) p[i - from] *= scales[entry_of(s, row, i) - low];
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
  float *scales = scores + (size_t)n * stride; /* of int8 values */
  if (a->cache == CACHE_INT8) {
    const uint8_t *keys = (const uint8_t *)s->keys + (start + (size_t)low) * key_bytes(a);
    const uint8_t *values = (const uint8_t *)s->values + (start + (size_t)low) * value_bytes(a);
    score_all(a, scratch, n, keys, tiles, scores, stride, scales + stride);
    for (int i = 0; i < high - low; i++)
      memcpy(scales + i, values + ((size_t)i + 1) * value_bytes(a) - 4, 4);
  } else {
    Sum sum = {.a = scratch, .b = s->keys, .c = scores, .n = width};
    sum.b_at = (start + (size_t)low) * d;
    sum.a_row = d, sum.b_step = KEYS, sum.b_unit = d * KEYS, sum.c_row = stride;
    sum.ahead = KEY_TILES_AHEAD * sum.b_unit;
    add_up_all(&sum, n, tiles, a->cache);
  }

  float *inverse = scratch; /* the queries are done with */
  for (int r = 0; r < n; r++) {
    const Row *row = s->paths + (first + r) / group;
    const int head = kv_head * group + (first + r) % group, seen = first_seen(a, row);
    float *p = scores + (size_t)r * stride;
    for (int i = max_int(row->lead, seen); i <= row->position; i++)
      p[i - low] = p[entry_of(s, row, i) - low];
    inverse[r] = soften(p + (seen - low), row->position + 1 - seen, a->softcap,
                        a->sinks ? a->sinks + head : NULL);
    if (a->cache == CACHE_INT8) weigh_scales(s, row, p + (seen - low), seen, scales, low);
    weigh(a, p + (seen - low), stride, s->values, start + (size_t)seen, shared_low - seen,
          out + (size_t)r * d, 1);
  }
  weigh(a, scores + max_int(shared_low - low, 0), stride, s->values, start + (size_t)shared_low,
        shared_high - shared_low, out, n);
  for (int r = 0, heads; r < n; r += heads) { /* a token's */
    const int token = (first + r) / group;
    heads = min_int(n - r, group - (first + r) % group);
    const Row *row = s->paths + token;
    float *p = scores + (size_t)r * stride, *o = out + (size_t)r * d;
    int i = max_int(shared_high, first_seen(a, row));
    weigh(a, p + (i - low), stride, s->values, start + (size_t)i, row->lead - i, o, heads);
    for (i = max_int(i, row->lead); i <= row->position; i++)
      weigh(a, p + (i - low), stride, s->values, start + (size_t)entry_of(s, row, i), 1, o, heads);
  }
  for (int r = 0; r < n; r++) {
    const size_t token = (size_t)((first + r) / group);
    const size_t head = (size_t)(kv_head * group + (first + r) % group);
    float *to = s->out + (token * (size_t)a->heads + head) * d;
    for (int j = 0; j < width; j++) to[j] = out[(size_t)r * d + (size_t)j] * inverse[r];
  }
}

/* A head's key, filled up with zeros to whole blocks, and value become an int8 cache's entry. */
INLINE void append_codes(const Attention *a, const Sequence *s, size_t before, size_t entry,
                         float *key, const float *value) {
  const size_t blocks = cache_blocks(a), tile = before + entry / KEYS * KEYS;
  uint8_t *keys = (uint8_t *)s->keys + tile * key_bytes(a) + entry % KEYS * 4;
  for (size_t b = 0; b < blocks; b++) {
    int8_t codes[BLOCK];
    float scale;
    int32_t sums[2];
    round_block(key + b * BLOCK, codes, &scale, sums);
    for (size_t i = 0; i < BLOCK; i++)
      keys[(b * BLOCK + i) / 4 * 4 * KEYS + i % 4] = (uint8_t)(codes[i] ^ zero_code(EIGHT));
    memcpy(keys + (blocks * BLOCK / 4 + b) * 4 * KEYS, &scale, 4);
  }
  memcpy(key, value, (size_t)a->head_dim * sizeof *key);
  uint8_t *values = (uint8_t *)s->values + (before + entry) * value_bytes(a);
  float inverse, scale = scale_of(key, (int)(blocks * BLOCK), &inverse);
  for (size_t i = 0; i < blocks * BLOCK; i += LANES) {
    int8_t codes[LANES] = {0};
    if (scale == scale) round_lanes(key + i, inverse, codes);
    for (size_t j = 0; j < LANES; j++) values[i + j] = (uint8_t)(codes[j] ^ zero_code(EIGHT));
  }
  memcpy(values + blocks * BLOCK, &scale, 4);
}

/* Row `token` of a sequence becomes an entry of its cache. scratch: (blocks, 32), zeros after
 * head_dim numbers */
INLINE void append_row(const Attention *a, const Sequence *s, int token, float *scratch) {
  const size_t d = (size_t)a->head_dim, entry = (size_t)(s->past + token);
  const size_t heads = (size_t)a->heads, row_width = (heads + 2 * (size_t)a->kv_heads) * d;
  const float *key = s->qkv + (size_t)token * row_width + heads * d;
  for (int head = 0; head < a->kv_heads; head++, key += d) {
    prepare(a, key, a->k_norm, s->paths[token].position, 1.0f, scratch);
    const float *value = key + (size_t)a->kv_heads * d;
    const size_t before = (size_t)head * (size_t)a->capacity, value_at = (before + entry) * d;
    const size_t key_at = (before + entry / KEYS * KEYS) * d + entry % KEYS;
    if (a->cache == CACHE_INT8) {
      append_codes(a, s, before, entry, scratch, value);
    } else if (a->cache == CACHE_HALF) {
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
  memset(scratch, 0, cache_blocks(a) * CACHE_BLOCK * sizeof *scratch);
  for (int token = first; token < last; token++) append_row(a, s, token, scratch);
}

#endif
