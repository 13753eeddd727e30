/* Compiles what follows for TARGET, a list of instruction sets, up to target_end.h. The compiler's
 * own headers are included before.
 */
#define SPECRT_TEXT(x) #x
#define SPECRT_PRAGMA(x) _Pragma(SPECRT_TEXT(x))
#ifdef __clang__
SPECRT_PRAGMA(clang attribute push(__attribute__((target(TARGET))), apply_to = function))
#elif defined(__GNUC__)
SPECRT_PRAGMA(GCC target(TARGET))
#endif
