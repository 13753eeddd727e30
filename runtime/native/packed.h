/* Quantised weights as they lie in the data file: used where they are mapped, never copied.
 *
 *   header, 64 bytes   uint32: magic, columns, number of matrices; then rows and kind of each
 *   matrices           tiles of 16 rows of the matrix, each a line of units along the columns
 *   unit               16 rows x 64 columns: codes of its runs of columns, then their scales
 *
 *   kind          run   its codes           scales (float16)     a weight is
 *   FOUR           32   4 x 64 bytes        2 x 16               (code - 8) * scale
 *   FOUR_MINIMUM   32   4 x 64 bytes        2 x 16, minimums     code * scale - minimum
 *   EIGHT          32   8 x 64 bytes        2 x 16               (code - 128) * scale
 *   SIX            16   (2 + 1) x 64 bytes  4 x 16               (code - 32) * scale
 *
 * Byte 4r+i of line j of a run holds of row r, EIGHT: column 4j+i; FOUR: column 8j+i in its low
 * half and 8j+4+i in its high half. SIX: the low halves of codes as FOUR, then a line of the two
 * high bits of columns i, 4+i, 8+i and 12+i. In this order dot-product instructions take them.
 * export/native.py writes this; the two files change together.
 */
#ifndef SPECRT_PACKED_H
#define SPECRT_PACKED_H
#include "operator.h"

enum { FOUR, FOUR_MINIMUM, EIGHT, SIX, KINDS };
enum { TILE = 16, UNIT = 64, BLOCK = 32, HEADER = 64, MAX_MATRICES = 6 };
enum { SCALES = 64 }; /* bytes of 2 x 16 */
enum { PACKED_MAGIC = 0x31515053 };                         /* "SPQ1" */

typedef struct {
  const uint8_t *tiles;
  int rows, kind;
} Matrix;

typedef struct {
  int cols, units; /* units along the columns */
  int rows;        /* of all matrices */
  int count;
  Matrix matrices[MAX_MATRICES];
} Packed;

static inline int run_columns(int kind) { return kind == SIX ? 16 : 32; }
static inline int run_bytes(int kind) { return kind == EIGHT ? 512 : kind == SIX ? 192 : 256; }
static inline int code_bytes(int kind) { return UNIT / run_columns(kind) * run_bytes(kind); }
static inline int zero_code(int kind) { return kind == EIGHT ? 128 : kind == SIX ? 32 : 8; }

static inline size_t unit_bytes(int kind) {
  return (size_t)code_bytes(kind) + (kind == FOUR_MINIMUM || kind == SIX ? 2 : 1) * SCALES;
}

/* Check the constant and find its matrices. */
OrtStatus *unpack(const Tensor *constant, Packed *packed);

#endif
