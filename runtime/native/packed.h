/* Quantised weights as they lie in the data file: used where they are mapped, never copied.
 *
 *   header, 64 bytes   uint32: magic, columns, number of matrices; then rows and kind of each
 *   matrices           tiles of 16 rows of the matrix, each a line of units along the columns
 *   unit               16 rows x 64 columns, of a K kind 256: codes of its runs of columns, then
 *                      the runs' scales, for 16 rows each
 *
 *   kind          run   its codes           scales in float16    a weight is
 *   FOUR           32   4 x 64 bytes        of 2 runs            (code - 8) * scale
 *   FOUR_MINIMUM   32   4 x 64 bytes        of 2 runs, minimums  code * scale - minimum
 *   EIGHT          32   8 x 64 bytes        of 2 runs            (code - 128) * scale
 *   SIX            16   (2 + 1) x 64 bytes  of 4 runs            (code - 32) * scale
 *   FOUR_K         32   4 x 64 bytes        see below            code * scale - minimum
 *   SIX_K          16   (2 + 1) x 64 bytes  see below            (code - 32) * scale
 *
 * FOUR_K, as GGUF's Q4_K, has 6 bits for the scales of 8 runs and 6 for their minimums (see
 * `unpack_steps`), then a float16 that the scales' bits are multiplied with, and one for the
 * minimums'. SIX_K, as Q6_K, has bytes for the scales of 16 runs, where 128 stands for 0, and a
 * float16 for them.
 *
 * With the magic of turns two matrices of one kind and size lie in turns, two tiles of each, as
 * they are read: a gate and up.
 *
 * Byte 4r+i of line j of a run holds of row r, EIGHT: column 4j+i; FOUR: column 8j+i in its low
 * half and 8j+4+i in its high half. Of 6 bits: the low halves as FOUR, then a line of the two
 * high bits of columns i, 4+i, 8+i and 12+i. In this order dot-product instructions take them.
 * export/native.py writes this; the two files change together.
 */
#ifndef SPECRT_PACKED_H
#define SPECRT_PACKED_H
#include "operator.h"

#ifdef _MSC_VER
#define INLINE static __forceinline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

enum { FOUR, FOUR_MINIMUM, EIGHT, SIX, FOUR_K, SIX_K, KINDS };
enum { TILE = 16, UNIT = 64, BLOCK = 32, HEADER = 64, MAX_MATRICES = 6 };
enum { PACKED_STEPS = 192, UNPACKED_STEPS = 256 }; /* of FOUR_K, bytes of a unit */
enum { PACKED_MAGIC = 0x31515053, TURNS_MAGIC = 0x32515053 }; /* "SPQ1", "SPQ2" */

typedef struct {
  const uint8_t *tiles;
  size_t pair; /* bytes from a tile to the next but one */
  int rows, kind;
} Matrix;

typedef struct {
  int cols, blocks; /* blocks along the columns, an even number */
  int rows;         /* of all matrices */
  int count;
  Matrix matrices[MAX_MATRICES];
} Packed;

static inline int has_six_bits(int kind) { return kind == SIX || kind == SIX_K; }
static inline int run_columns(int kind) { return has_six_bits(kind) ? 16 : 32; }
static inline int run_bytes(int kind) {
  return kind == EIGHT ? 512 : has_six_bits(kind) ? 192 : 256;
}
static inline int has_minimum(int kind) { return kind == FOUR_MINIMUM || kind == FOUR_K; }
static inline int zero_code(int kind) {
  return has_minimum(kind) ? 0 : kind == EIGHT ? 128 : has_six_bits(kind) ? 32 : 8;
}

static inline int unit_columns(int kind) { return kind == FOUR_K || kind == SIX_K ? 256 : UNIT; }
static inline int unit_runs(int kind) { return unit_columns(kind) / run_columns(kind); }
static inline int code_bytes(int kind) { return unit_runs(kind) * run_bytes(kind); }
/* Of the scales of a unit's runs, and of the float16 after them where they are integers. */
static inline int step_bytes(int kind) {
  return kind == FOUR_K  ? PACKED_STEPS
         : kind == SIX_K ? 16 * TILE
                         : (has_minimum(kind) ? 2 : 1) * unit_runs(kind) * 2 * TILE;
}
static inline int half_bytes(int kind) {
  return kind == FOUR_K ? 4 * TILE : kind == SIX_K ? 2 * TILE : 0;
}
static inline int unit_bytes(int kind) {
  return code_bytes(kind) + step_bytes(kind) + half_bytes(kind);
}

/* Of a tile over so many blocks of columns. */
static inline size_t tile_bytes(int kind, int blocks) {
  return (size_t)(blocks * BLOCK / run_columns(kind) / unit_runs(kind)) * (size_t)unit_bytes(kind);
}

static inline const uint8_t *tile_at(const Matrix *matrix, int blocks, int64_t tile) {
  const size_t odd = tile % 2 ? tile_bytes(matrix->kind, blocks) : 0;
  return matrix->tiles + (size_t)(tile / 2) * matrix->pair + odd;
}

/* The scales of FOUR_K's 8 runs as bytes, for 16 rows each, then their minimums. Of 128 numbers
 * each, the low halves share a byte; a byte after them has the two high bits of scales i and
 * 64 + i and of minimums i and 64 + i. */
INLINE void unpack_steps(const uint8_t *packed, uint8_t steps[UNPACKED_STEPS]) {
  uint8_t *minimums = steps + 128;
  for (int i = 0; i < 64; i++) {
    const int first = packed[i], second = packed[64 + i], high = packed[128 + i];
    steps[i] = (uint8_t)((first & 15) | (high << 4 & 48));
    steps[64 + i] = (uint8_t)((second & 15) | (high << 2 & 48));
    minimums[i] = (uint8_t)(first >> 4 | (high & 48));
    minimums[64 + i] = (uint8_t)(second >> 4 | (high >> 2 & 48));
  }
}

/* Check the constant and find its matrices. */
OrtStatus *unpack(const Tensor *constant, Packed *packed);

#endif
