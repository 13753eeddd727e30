/* What is read once is fetched ahead of its use, which hides the memory's latency. */
#ifndef SPECRT_PREFETCH_H
#define SPECRT_PREFETCH_H
#include <stdint.h>
#ifdef _M_X64
#include <intrin.h>
#endif

enum { AHEAD = 8192 }; /* bytes, of weights; enough at several rows too */

static inline void fetch(const void *at) {
#ifdef __GNUC__
  __builtin_prefetch(at);
#elif defined(_M_X64)
  _mm_prefetch((const char *)at, _MM_HINT_T0);
#else
  (void)at;
#endif
}

/* So many cache lines of what is read in order. In the order of their addresses: memory answers
 * others some 10 % more slowly. */
static inline void prefetch(const uint8_t *weights, int lines) {
#pragma GCC unroll 16
  for (int i = 0; i < lines; i++) fetch(weights + AHEAD + 64 * i);
}

#endif
