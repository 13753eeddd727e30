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

static inline void prefetch(const uint8_t *weights) { fetch(weights + AHEAD); }

#endif
