/* AVX-VNNI: the dot product of AVX-512 VNNI in vectors of 8, on processors without AVX-512. */
#include "path.h"
#include "processor.h"
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 11
#define UNKNOWN 1 /* to these compilers; they leave the path out */
#endif
#if X86 && !UNKNOWN
#include <immintrin.h>

#define TARGET "avxvnni,avx2,f16c"
#include "target.h"
#include "vectors_avx2.h"

INLINE Ints i_dot(Ints sums, Ints codes, Ints x) { return _mm256_dpbusd_avx_epi32(sums, codes, x); }

#include "dot_vnni.h"
#include "path_body.h"

const Path avx_vnni_path = PATH("avx-vnni");
#include "target_end.h"
#else
const Path avx_vnni_path = {0};
#endif
