/* The weights are read once: so far ahead hides the memory's latency, at several rows too. */
#ifndef SPECRT_PREFETCH_H
#define SPECRT_PREFETCH_H
#include <stdint.h>
#ifdef _M_X64
#include <intrin.h>
#endif

enum { AHEAD = 8192 }; /* bytes */

static inline void prefetch(const uint8_t *at) {
#ifdef __GNUC__
  __builtin_prefetch(at + AHEAD);
#elif defined(_M_X64)
  _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
#else
  (void)at;
#endif
}

#endif
