/* float16 in plain C. */
#ifndef SPECRT_HALF_H
#define SPECRT_HALF_H
#include <stdint.h>
#include <string.h>

#ifdef __ARM_FP16_FORMAT_IEEE /* every 64-bit ARM converts them itself */
static inline float half_to_float(uint16_t half) {
  __fp16 value;
  memcpy(&value, &half, 2);
  return value;
}

static inline uint16_t half_of(float value) {
  __fp16 half = (__fp16)value;
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}
#else
static inline float half_to_float(uint16_t half) {
  uint32_t exponent = (half >> 10) & 31, fraction = half & 1023;
  uint32_t sign = (uint32_t)(half >> 15) << 31;
  float value;
  if (!exponent) { /* zero or subnormal: a multiple of 2^-24 */
    value = (float)fraction * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  memcpy(&value, &bits, 4);
  return value;
}

/* To the nearest, ties to even. */
static inline uint16_t half_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* from 65520 on: infinite */
  if (bits < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, to which adding 0.5 rounds */
    memcpy(&value, &bits, 4);
    value += 0.5f;
    memcpy(&bits, &value, 4);
    return (uint16_t)(sign | (bits - 0x3f000000u));
  }
  bits += 0xfffu + (bits >> 13 & 1u);
  return (uint16_t)(sign | (bits - 0x38000000u) >> 13);
}
#endif

static inline float half_at(const uint8_t *bytes, int index) {
  uint16_t half;
  memcpy(&half, bytes + 2 * index, 2);
  return half_to_float(half);
}

#endif
