#include "packed.h"

#include <string.h>

OrtStatus *unpack(const Tensor *constant, Packed *packed) {
  uint32_t header[HEADER / 4];
  const uint8_t *bytes = constant->data;
  if (!bytes || constant->rank != 1 || constant->dims[0] < HEADER)
    return invalid("specrt: packed weights have no header; export the bundle again");
  memcpy(header, bytes, HEADER);
  const uint32_t turns = header[0] == TURNS_MAGIC, *first = header + 3, *second = header + 5;
  if (header[0] != PACKED_MAGIC && !turns)
    return invalid("specrt: packed weights start with %08x, not %08x; export the bundle again",
                   header[0], PACKED_MAGIC);
  const uint32_t most = INT32_MAX / 4;
  if (header[1] < 1 || header[1] > most || header[2] < 1 || header[2] > MAX_MATRICES)
    return invalid("specrt: packed weights claim %u columns, %u matrices", header[1], header[2]);
  *packed = (Packed){.cols = (int)header[1], .count = (int)header[2]};
  packed->blocks = (packed->cols + UNIT - 1) / UNIT * (UNIT / BLOCK);
  if (turns && (packed->count != 2 || first[0] != second[0] || first[1] != second[1] ||
                first[0] % (2 * TILE)))
    return invalid("specrt: packed matrices of %u and %u rows, %d in all, cannot lie in turns",
                   first[0], second[0], packed->count);
  uint64_t at = HEADER, rows = 0;
  for (int i = 0; i < packed->count; i++) {
    uint32_t height = header[3 + 2 * i], kind = header[4 + 2 * i];
    const int whole = kind < KINDS && unit_columns((int)kind) > UNIT; /* units, no part of one */
    if (height < 1 || height > most || kind >= KINDS || (whole && header[1] % 256))
      return invalid("specrt: packed matrix %d claims %u rows of kind %u and %u columns", i, height,
                     kind, header[1]);
    const size_t pair = 2 * tile_bytes((int)kind, packed->blocks);
    const uint64_t start = turns ? HEADER + (uint64_t)i * pair : at;
    if (at <= (uint64_t)constant->dims[0])
      packed->matrices[i] = (Matrix){bytes + start, (1 + turns) * pair, (int)height, (int)kind};
    at += (uint64_t)(height + TILE - 1) / TILE * (pair / 2);
    rows += height;
  }
  if (at != (uint64_t)constant->dims[0] || rows > most)
    return invalid("specrt: packed weights have %lld bytes, their header says %llu; export the bundle "
                   "again", (long long)constant->dims[0], (unsigned long long)at);
  packed->rows = (int)rows;
  return NULL;
}
