/* float16 in plain C. */
#ifndef SPECRT_HALF_H
#define SPECRT_HALF_H
#include <stdint.h>
#include <string.h>

static inline float half_at(const uint8_t *bytes, int index) {
  uint16_t half;
  memcpy(&half, bytes + 2 * index, 2);
  uint32_t exponent = (half >> 10) & 31, fraction = half & 1023, sign = (uint32_t)(half >> 15) << 31;
  float value;
  if (!exponent) { /* zero or subnormal: a multiple of 2^-24 */
    value = (float)fraction * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  memcpy(&value, &bits, 4);
  return value;
}

#endif
