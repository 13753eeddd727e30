#include "path.h"

#include <string.h>

extern const Path portable_path;
#if defined(__x86_64__) || defined(_M_X64)
#define X86 1
extern const Path avx2_path, avx512_path;
#ifdef _MSC_VER
#include <intrin.h>
#else
#include <cpuid.h>
#endif

enum { EAX, EBX, ECX, EDX };

/* Read directly: what compilers offer for this is a stub in some cross compilers. */
static void cpuid(int leaf, unsigned r[4]) {
#ifdef _MSC_VER
  __cpuidex((int *)r, leaf, 0);
#else
  __cpuid_count(leaf, 0, r[EAX], r[EBX], r[ECX], r[EDX]);
#endif
}

static unsigned enabled_by_system(void) {
#ifdef _MSC_VER
  return (unsigned)_xgetbv(0);
#else
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
#endif
}

static int has(unsigned word, unsigned bits) { return (word & bits) == bits; }

static int runs_avx2(void) {
  const unsigned osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29, avx2 = 1u << 5;
  unsigned r[4];
  cpuid(0, r);
  if (r[EAX] < 7) return 0;
  cpuid(1, r);
  if (!has(r[ECX], osxsave | avx | f16c) || !has(enabled_by_system(), 0x06)) return 0;
  cpuid(7, r);
  return has(r[EBX], avx2);
}

static int runs_avx512(void) {
  const unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
  unsigned r[4];
  if (!runs_avx2() || !has(enabled_by_system(), 0xe6)) return 0;
  cpuid(7, r);
  return has(r[EBX], f | dq | bw | vl) && has(r[ECX], vnni);
}
#endif

/* Best first. A new path (NEON, AVX-VNNI) is a file with a Path and a line here. */
static const Path *available(const char *name) {
#ifdef X86
  if ((!name || !strcmp(name, avx512_path.name)) && runs_avx512()) return &avx512_path;
  if ((!name || !strcmp(name, avx2_path.name)) && runs_avx2()) return &avx2_path;
#endif
  return !name || !strcmp(name, portable_path.name) ? &portable_path : NULL;
}

static const Path *chosen;

int choose_path(const char *name) {
  const Path *found = available(name);
  if (found) chosen = found;
  return found != NULL;
}

const Path *path(void) {
  if (!chosen) chosen = available(NULL); /* several threads would find the same */
  return chosen;
}
