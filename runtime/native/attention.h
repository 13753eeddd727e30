/* Attention over a cache that is appended to in place, as the operator hands it to a path.
 *
 *   keys    (kv_heads, capacity / 16, head_dim, 16): 16 entries side by side fill a register
 *   values  (kv_heads, capacity, head_dim)
 *
 * Of int8 a head is filled up to blocks of 32 numbers:
 *
 *   keys    (kv_heads, capacity / 16, 9 * blocks, 16, 4): a line has the codes of 4 numbers of each
 *           entry, as EIGHT in packed.h; after the blocks' lines comes one for each block with the
 *           16 entries' scales, float
 *   values  (kv_heads, capacity, 32 * blocks + 4): codes, as EIGHT's, then their scale, float
 *
 * Keys have a scale for each block since some models' have a few numbers far larger than the rest.
 *
 * A row sees its path: the cache's entries before the call, then its ancestors in the block, itself
 * last. What it gets depends on the path alone, in the order of the path: not on where in the block
 * the path's tokens stand, nor on the rows beside it.
 */
#ifndef SPECRT_ATTENTION_H
#define SPECRT_ATTENTION_H
#include <stddef.h>
#include <stdint.h>

enum { KEYS = 16 }; /* entries of a key tile */
enum { CACHE_FLOAT, CACHE_HALF, CACHE_INT8 };
enum { CACHE_BLOCK = 32 }; /* numbers of an int8 key that share a scale */

typedef struct {
  int heads, kv_heads, head_dim, capacity;
  int rows;   /* of each sequence */
  int pairs;  /* numbers of a head that are rotated with their partner `pairs` further on */
  int window; /* entries a row sees, 0: all */
  int cache;  /* CACHE_FLOAT, ... */
  float scale, softcap, epsilon;
  const float *cos, *sin;       /* (positions, pairs) */
  const float *q_norm, *k_norm; /* (head_dim,) or NULL */
  const float *sinks;           /* (heads,) or NULL */
} Attention;

typedef struct {
  int position; /* how many tokens stand before it on its path */
  int lead;     /* its path begins with the entries 0 .. lead - 1 */
  size_t tail;  /* and goes on with the entries slots[tail], ... */
} Row;

typedef struct {
  const float *qkv; /* (rows, (heads + 2 kv_heads) * head_dim) */
  void *keys, *values; /* of the cache's type */
  float *out;
  int past; /* entries before the call; row i becomes entry past + i */
  const Row *paths;
  const int *slots;
} Sequence;

static inline size_t cache_blocks(const Attention *a) {
  return ((size_t)a->head_dim + CACHE_BLOCK - 1) / CACHE_BLOCK;
}

/* Bytes of an entry's key, and of its value. */
static inline size_t key_bytes(const Attention *a) {
  const size_t d = (size_t)a->head_dim;
  return a->cache == CACHE_INT8 ? (CACHE_BLOCK + 4) * cache_blocks(a) : a->cache ? 2 * d : 4 * d;
}

static inline size_t value_bytes(const Attention *a) {
  return a->cache == CACHE_INT8 ? CACHE_BLOCK * cache_blocks(a) + 4 : key_bytes(a);
}

/* Floats of scratch that `n` rows need; entries: those of the cache after the call. */
static inline size_t attention_scratch(const Attention *a, int n, int entries) {
  const size_t whole = ((size_t)entries + 2 * KEYS) / KEYS * KEYS, rows = (size_t)n;
  const size_t floats = rows * (2 * (size_t)a->head_dim + whole);
  const size_t rounded = (CACHE_BLOCK / 4 + 2) * cache_blocks(a); /* codes, scales, starts */
  return a->cache == CACHE_INT8 ? floats + whole + rows * rounded : floats;
}

#endif
