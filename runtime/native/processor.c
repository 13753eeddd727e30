/* Asked directly: what compilers offer for this is a stub in some cross compilers. */
#include "processor.h"

#if X86
#ifdef _MSC_VER
#include <intrin.h>
#else
#include <cpuid.h>
#endif

enum { EAX, EBX, ECX, EDX };

static int has(unsigned word, unsigned bits) { return (word & bits) == bits; }

static void cpuid(int leaf, int subleaf, unsigned r[4]) {
#ifdef _MSC_VER
  __cpuidex((int *)r, leaf, subleaf);
#else
  __cpuid_count(leaf, subleaf, r[EAX], r[EBX], r[ECX], r[EDX]);
#endif
}

/* Which registers the system saves when it changes threads. */
static unsigned saved(void) {
#ifdef _MSC_VER
  return (unsigned)_xgetbv(0);
#else
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
#endif
}

unsigned processor(void) {
  const unsigned osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29, avx2 = 1u << 5;
  const unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
  const unsigned avx_vnni = 1u << 4, ymm = 0x06, zmm = 0xe6;
  unsigned r[4], found = AVX2;
  cpuid(0, 0, r);
  if (r[EAX] < 7) return 0;
  cpuid(1, 0, r);
  if (!has(r[ECX], osxsave | avx | f16c) || !has(saved(), ymm)) return 0;
  cpuid(7, 0, r);
  if (!has(r[EBX], avx2)) return 0;
  if (has(saved(), zmm) && has(r[EBX], f | dq | bw | vl) && has(r[ECX], vnni)) found |= AVX512_VNNI;
  if (r[EAX] < 1) return found;
  cpuid(7, 1, r);
  return has(r[EAX], avx_vnni) ? found | AVX_VNNI : found;
}

#elif ARM && defined(__linux__)
#include <sys/auxv.h>

unsigned processor(void) { /* HWCAP_ASIMDDP, HWCAP2_I8MM */
  unsigned found = getauxval(AT_HWCAP) & 1ul << 20 ? NEON_DOT : 0;
  return found && getauxval(AT_HWCAP2) & 1ul << 13 ? found | NEON_I8MM : found;
}

#elif ARM && defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>

static int says(const char *name) {
  int value = 0;
  size_t size = sizeof value;
  return !sysctlbyname(name, &value, &size, NULL, 0) && value;
}

unsigned processor(void) {
  unsigned found = says("hw.optional.arm.FEAT_DotProd") ? NEON_DOT : 0;
  return found && says("hw.optional.arm.FEAT_I8MM") ? found | NEON_I8MM : found;
}

#elif ARM && defined(_WIN32)
#include <windows.h>

unsigned processor(void) { /* PF_ARM_V82_DP and PF_ARM_V82_I8MM _INSTRUCTIONS_AVAILABLE */
  unsigned found = IsProcessorFeaturePresent(43) ? NEON_DOT : 0;
  return found && IsProcessorFeaturePresent(66) ? found | NEON_I8MM : found;
}

#else
unsigned processor(void) { return 0; }
#endif
