/* What is the same on every path, compiled into each so that it uses that path's vectors. */
#ifndef SPECRT_ROWS_H
#define SPECRT_ROWS_H
#include <math.h>
#include <string.h>

#include "path.h"

enum { LANES = 16 };

/* exp(x) for x clamped to [-87, 88]; a NaN gives exp(88). */
INLINE float exp_clamped(float x) {
  const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
  x = x < 88.0f ? x : 88.0f;
  x = x > -87.0f ? x : -87.0f;
  float n = (x * 1.44269504f + shift) - shift;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r;
  p = p + 1.0f;
  int32_t bits = ((int32_t)n + 127) << 23;
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

INLINE float silu(float x) { return x / (1.0f + exp_clamped(-x)); }

/* The tanh form: x / 2 * (1 + tanh(u)) is x / (1 + exp(-2u)). */
INLINE float gelu(float x) {
  float u = 0.7978845608f * (x + 0.044715f * (x * x * x));
  return x / (1.0f + exp_clamped(-2.0f * u));
}

INLINE void gate_row(const float *gate, const float *up, float *out, int n, int activation) {
  if (activation == GELU)
    for (int i = 0; i < n; i++) out[i] = gelu(gate[i]) * up[i];
  else
    for (int i = 0; i < n; i++) out[i] = silu(gate[i]) * up[i];
}

/* Of x + update (NULL: of x). Squares are summed in 16 lanes whatever the vectors' width, which are
 * then halved four times. */
INLINE float inverse_rms_row(const float *x, const float *update, int n, float epsilon) {
  float lane[LANES] = {0};
  int i = 0;
  for (; update && i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) {
      const float value = x[i + j] + update[i + j];
      lane[j] += value * value;
    }
  for (; !update && i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * x[i + j];
  for (int j = 0; i + j < n; j++) {
    const float value = update ? x[i + j] + update[i + j] : x[i + j];
    lane[j] += value * value;
  }
  for (int half = LANES / 2; half; half /= 2)
    for (int j = 0; j < half; j++) lane[j] += lane[j + half];
  return 1.0f / sqrtf(lane[0] / (float)n + epsilon);
}

INLINE void norm_row(const float *x, const float *update, const float *weight, float inverse, int n,
                     float *total, float *out) {
  if (update) { /* out holds the sum until it is normed: it may not be wanted elsewhere */
    for (int i = 0; i < n; i++) out[i] = x[i] + update[i];
    if (total) memcpy(total, out, (size_t)n * sizeof *out);
    x = out;
  } else if (total) {
    memcpy(total, x, (size_t)n * sizeof *x);
  }
  for (int i = 0; i < n; i++) out[i] = (x[i] * inverse) * weight[i];
}

#endif
