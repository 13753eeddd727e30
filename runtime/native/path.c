#include "path.h"

#include <string.h>

#include "processor.h"

/* Each is in a file of its own; without a name where that file is for another kind of processor. */
extern const Path avx512_path, avx_vnni_path, avx2_path, neon_i8mm_path, neon_dot_path,
    portable_path;

static const struct {
  const Path *path;
  unsigned needs;
} paths[] = { /* best first */
    {&avx512_path, AVX512_VNNI},
    {&avx_vnni_path, AVX_VNNI},
    {&avx2_path, AVX2},
    {&neon_i8mm_path, NEON_I8MM},
    {&neon_dot_path, NEON_DOT},
    {&portable_path, 0},
};

static const Path *available(const char *name) {
  const unsigned found = processor();
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    const Path *path = paths[i].path;
    const int can = path->name && (found & paths[i].needs) == paths[i].needs;
    if (can && (!name || !strcmp(name, path->name))) return path;
  }
  return NULL;
}

static const Path *chosen;

int choose_path(const char *name) {
  const Path *found = available(name);
  if (found) chosen = found;
  return found != NULL;
}

const Path *path(void) {
  if (!chosen) chosen = available(NULL); /* several threads would find the same */
  return chosen;
}
