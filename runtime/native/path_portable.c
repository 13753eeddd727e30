/* Plain C, in vectors of 4 where the compiler has them and one by one where it has not. */
#include "half.h"
#include "rows.h"

#define GROUP 4
#ifdef __GNUC__
enum { PARTS = 4, WIDEST = 4 };
typedef float Vector __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
INLINE Vector v_float(Ints v) { return __builtin_convertvector(v, Vector); }
#else
enum { PARTS = LANES, WIDEST = 1 };
typedef float Vector;
typedef int32_t Ints;
typedef uint32_t Words;
INLINE Vector v_float(Ints v) { return (float)v; }
#endif

INLINE Vector v_load(const float *x) {
  Vector v;
  memcpy(&v, x, sizeof v);
  return v;
}

INLINE void v_store(float *to, Vector v) { memcpy(to, &v, sizeof v); }
INLINE Vector v_all(float x) { return x - (Vector){0}; } /* -0 stays -0 */
INLINE Vector v_add(Vector a, Vector b) { return a + b; }
INLINE Vector v_sub(Vector a, Vector b) { return a - b; }
INLINE Vector v_mul(Vector a, Vector b) { return a * b; }

INLINE Ints i_all(int32_t x) { return x + (Ints){0}; }
/* Bits without the sign, which order as the magnitudes do; the nearest integers, ties to even. */
INLINE Ints i_magnitude(Vector v) {
  Ints bits;
  memcpy(&bits, &v, sizeof v);
  return bits & INT32_MAX;
}
INLINE Ints i_nearest(Vector v) {
  Vector shifted = v + 12582912.0f; /* 1.5 * 2^23: the integer is in the last bits of the sum */
  Ints bits;
  memcpy(&bits, &shifted, sizeof bits);
  return bits - 0x4b400000;
}
INLINE Ints i_add(Ints a, Ints b) { return a + b; }
INLINE Ints i_larger(Ints a, Ints b) { /* of two that are not negative */
  Ints more = a - b;
  return a - (more & (more >> 31));
}
INLINE int32_t i_sum(Ints v) {
  int32_t values[LANES / PARTS], sum = 0;
  memcpy(values, &v, sizeof v);
  for (int i = 0; i < LANES / PARTS; i++) sum += values[i];
  return sum;
}
INLINE int32_t i_largest(Ints v) {
  int32_t values[LANES / PARTS], largest = 0;
  memcpy(values, &v, sizeof v);
  for (int i = 0; i < LANES / PARTS; i++) largest = values[i] > largest ? values[i] : largest;
  return largest;
}
INLINE void i_store_low(int8_t *to, Ints v) {
  int32_t values[LANES / PARTS];
  memcpy(values, &v, sizeof v);
  for (int i = 0; i < LANES / PARTS; i++) to[i] = (int8_t)values[i];
}

INLINE Vector v_load_half(const void *x) {
  float values[LANES / PARTS];
  for (int i = 0; i < LANES / PARTS; i++) values[i] = half_at(x, i);
  return v_load(values);
}

INLINE Vector v_load_bytes(const uint8_t *x) {
  float values[LANES / PARTS];
  for (int i = 0; i < LANES / PARTS; i++) values[i] = (float)x[i];
  return v_load(values);
}

INLINE void v_store_half(void *to, Vector v) {
  float values[LANES / PARTS];
  uint16_t halves[LANES / PARTS];
  v_store(values, v);
  for (int i = 0; i < LANES / PARTS; i++) halves[i] = half_of(values[i]);
  memcpy(to, halves, sizeof halves);
}

#include "run.h"

/* A word of a line has four codes of a row, or eight; of 6 bits those of the last line have the
 * high bits of sixteen. */
INLINE void dot(const uint8_t *lines, const int8_t *x, const int32_t *start, int kind, int rows,
                Ints *sums, const Run *before) {
  (void)before; /* none is late */
  const int columns = kind == EIGHT ? 4 : 8, bits = 32 / columns;
  for (int m = 0; m < rows; m++) sums[m] = (has_minimum(kind) ? 0 : start[m]) + (Ints){0};
  Words high = {0};
  if (has_six_bits(kind)) memcpy(&high, lines + 128, sizeof high);
  for (int j = 0; j < run_columns(kind) / columns; j++) {
    Words line;
    memcpy(&line, lines + 64 * j, sizeof line);
#pragma GCC unroll 8
    for (int i = 0; i < columns; i++) {
      int column = columns * j + (kind == EIGHT ? i : i / 2 + i % 2 * 4);
      Ints codes = (Ints)(line >> (bits * i) & ((1u << bits) - 1));
      if (has_six_bits(kind)) codes |= (Ints)((high >> (i / 2 * 8 + 4 * j + i % 2 * 2) & 3) << 4);
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++) sums[m] += codes * x[m * BLOCK + column];
    }
  }
}

#include "path_body.h"

const Path portable_path = PATH("portable");
