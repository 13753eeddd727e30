/* What the processor and the operating system let run. */
#ifndef SPECRT_PROCESSOR_H
#define SPECRT_PROCESSOR_H

#if defined(__x86_64__) || defined(_M_X64)
#define X86 1
#elif defined(__aarch64__) || defined(_M_ARM64)
#define ARM 1
#endif

enum { AVX2 = 1, AVX_VNNI = 2, AVX512_VNNI = 4, NEON_DOT = 8, NEON_I8MM = 16 };

/* The sum of those that can be used; the first two need AVX2's F16C as well. */
unsigned processor(void);

#endif
