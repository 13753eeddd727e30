/* Quantised weights as they lie in the data file: used where they are mapped, never copied.
 *
 *   header, 64 bytes   uint32: magic, columns, number of matrices; then rows and kind of each
 *   matrices           tiles of 16 rows of the matrix, each a line of units along the columns
 *   unit               16 rows x 64 columns: codes of two blocks of 32, then their scales
 *
 *   kind          codes of a block        scales (float16)     a weight is
 *   FOUR          4 x 64 bytes            2 x 16               (code - 8) * scale
 *   FOUR_MINIMUM  4 x 64 bytes            2 x 16, minimums     code * scale - minimum
 *   EIGHT         8 x 64 bytes            2 x 16               (code - 128) * scale
 *
 * Byte 4r+i of line j of a block holds of row r, EIGHT: column 4j+i; FOUR: column 8j+i in its low
 * half and 8j+4+i in its high half. That is the order in which dot-product instructions take them.
 * export/native.py writes this; the two files change together.
 */
#ifndef SPECRT_PACKED_H
#define SPECRT_PACKED_H
#include "operator.h"

enum { FOUR, FOUR_MINIMUM, EIGHT, KINDS };
enum { TILE = 16, UNIT = 64, BLOCK = 32, HEADER = 64, MAX_MATRICES = 6 };
enum { FOUR_CODES = 512, EIGHT_CODES = 1024, SCALES = 64 }; /* bytes a unit */
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

static inline size_t unit_bytes(int kind) {
  return kind == EIGHT ? EIGHT_CODES + SCALES : FOUR_CODES + SCALES * (1 + (kind == FOUR_MINIMUM));
}

/* Check the constant and find its matrices. */
OrtStatus *unpack(const Tensor *constant, Packed *packed);

#endif
