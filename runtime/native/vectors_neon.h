/* Vectors of 4 for the paths of 64-bit ARM, and the weights as their dot products take them. */
#ifndef SPECRT_VECTORS_NEON_H
#define SPECRT_VECTORS_NEON_H
#include "rows.h"

#define GROUP 8
enum { PARTS = 4, WIDEST = 6 };
typedef float32x4_t Vector;
typedef int32x4_t Ints;

INLINE Vector v_load(const float *x) { return vld1q_f32(x); }
INLINE void v_store(float *to, Vector v) { vst1q_f32(to, v); }
INLINE Vector v_all(float x) { return vdupq_n_f32(x); }
INLINE Vector v_add(Vector a, Vector b) { return vaddq_f32(a, b); }
INLINE Vector v_sub(Vector a, Vector b) { return vsubq_f32(a, b); }
INLINE Vector v_mul(Vector a, Vector b) { return vmulq_f32(a, b); }
INLINE Vector v_float(Ints v) { return vcvtq_f32_s32(v); }
INLINE Vector v_load_half(const void *x) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(x))); }
INLINE Vector v_load_bytes(const uint8_t *x) {
  uint32_t bytes;
  memcpy(&bytes, x, 4);
  uint8x8_t eight = vreinterpret_u8_u32(vdup_n_u32(bytes));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(eight))));
}
INLINE void v_store_half(void *to, Vector v) {
  vst1_u8(to, vreinterpret_u8_f16(vcvt_f16_f32(v)));
}

/* Bits without the sign, which order as the magnitudes do; the nearest integers, ties to even. */
INLINE Ints i_all(int32_t x) { return vdupq_n_s32(x); }
INLINE Ints i_magnitude(Vector v) {
  return vandq_s32(vreinterpretq_s32_f32(v), vdupq_n_s32(INT32_MAX));
}
INLINE Ints i_nearest(Vector v) { return vcvtnq_s32_f32(v); }
INLINE Ints i_add(Ints a, Ints b) { return vaddq_s32(a, b); }
INLINE Ints i_larger(Ints a, Ints b) { return vmaxq_s32(a, b); }
INLINE int32_t i_sum(Ints v) { return vaddvq_s32(v); }
INLINE int32_t i_largest(Ints v) { return vmaxvq_s32(v); }
INLINE void i_store_low(int8_t *to, Ints v) {
  int16x4_t half = vmovn_s32(v);
  int8x8_t low = vmovn_s16(vcombine_s16(half, half));
  vst1_lane_s32((void *)to, vreinterpret_s32_s8(low), 0);
}

enum { COLUMNS = 16 }; /* of a step: four weights of each row, four times */

/* The codes of columns step * 16 and on: codes[i] has columns 4i .. 4i + 3 of four rows. */
INLINE void read_codes(const uint8_t *lines, int kind, int step, uint8x16_t codes[4]) {
  if (kind == EIGHT) {
    for (int i = 0; i < 4; i++) codes[i] = vld1q_u8(lines + 64 * (4 * step + i));
  } else {
    for (int i = 0; i < 2; i++) {
      uint8x16_t line = vld1q_u8(lines + 64 * (2 * step + i));
      codes[2 * i] = vandq_u8(line, vdupq_n_u8(15));
      codes[2 * i + 1] = vshrq_n_u8(line, 4);
    }
    if (!has_six_bits(kind)) return;
    const uint8x16_t high = vld1q_u8(lines + 128), bits = vdupq_n_u8(0x30);
    codes[0] = vorrq_u8(codes[0], vandq_u8(vshlq_n_u8(high, 4), bits));
    codes[1] = vorrq_u8(codes[1], vandq_u8(vshlq_n_u8(high, 2), bits));
    codes[2] = vorrq_u8(codes[2], vandq_u8(high, bits));
    codes[3] = vorrq_u8(codes[3], vandq_u8(vshrq_n_u8(high, 2), bits));
  }
}

#endif
