#ifdef __clang__
#pragma clang attribute pop
#endif
