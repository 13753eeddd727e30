/* Attention over a cache that is appended to in place, as the operator hands it to a path.
 *
 *   keys    (kv_heads, capacity / 16, head_dim, 16): 16 entries side by side fill a register
 *   values  (kv_heads, capacity, head_dim)
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

typedef struct {
  int heads, kv_heads, head_dim, capacity;
  int rows;   /* of each sequence */
  int pairs;  /* numbers of a head that are rotated with their partner `pairs` further on */
  int window; /* entries a row sees, 0: all */
  int half;   /* whether the cache is of float16 instead of float */
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
  void *keys, *values; /* float or float16 */
  float *out;
  int past; /* entries before the call; row i becomes entry past + i */
  const Row *paths;
  const int *slots;
} Sequence;

/* Floats of scratch that `n` rows need; entries: those of the cache after the call. */
static inline size_t attention_scratch(const Attention *a, int n, int entries) {
  return (size_t)n * (2 * (size_t)a->head_dim + ((size_t)entries + 2 * KEYS) / KEYS * KEYS);
}

#endif
