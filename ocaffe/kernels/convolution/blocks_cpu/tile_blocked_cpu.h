/* The register tile of products on images whose channels are in blocks of V (docs/kernels.md, Channels in blocks on CPUs): MR pixels x NV vectors of V
   outputs. V, NV, MR: see tile_cpu.h. Filters are packed as panels of NR = NV * V outputs, [depth][NR]. */
#ifndef OCAFFE_TILE_BLOCKED_CPU_H
#define OCAFFE_TILE_BLOCKED_CPU_H

#include "tile_cpu.h"

#define EARLY 8 /* steps of the depth by which filters are prefetched into the first-level cache */
#define LINE_FLOATS 16 /* floats of a cache line */

/* The filters of the next outputs are prefetched into the second-level cache while these are multiplied, or the first pixels would wait for memory:
   EXPECT, in each of `steps` steps, prefetches as many lines as `count` floats need. */
#define EXPECTED_LINES(count, steps) (int)(((count) / LINE_FLOATS + (steps) - 1) / (steps))
#define EXPECT(ahead, lines) ROLLED for (int l_ = 0; l_ < (lines); l_++, ahead += LINE_FLOATS) AHEAD(ahead)

#define CLEAR(acc)                                     \
  _Pragma("unroll") for (int i = 0; i < MR; i++)       \
    _Pragma("unroll") for (int j = 0; j < NV; j++) acc[i][j] = (vec)(0)

/* acc[i] += sum over k < depth of a[i * step + k] * b[k], where b[k] are NR outputs. Moves b beyond them. */
#define ADD_PRODUCTS(acc, a, step, b, depth)                                                       \
  for (int k = 0; k < (depth); k++, b += NR) {                                                     \
    vec right_[NV];                                                                                \
    _Pragma("unroll") for (int j = 0; j < NV; j++) PREFETCH(b + EARLY * NR + j * V, 3);            \
    _Pragma("unroll") for (int j = 0; j < NV; j++) right_[j] = GLOBAL(b + j * V);                  \
    _Pragma("unroll") for (int i = 0; i < MR; i++) {                                               \
      const vec left_ = (vec)((a)[i * (step) + k]);                                                \
      _Pragma("unroll") for (int j = 0; j < NV; j++) acc[i][j] += left_ * right_[j];               \
    }                                                                                              \
  }

/* Offsets and factors of `count` outputs from o on; zero past the last. */
INLINE void OWN(epilogue_of)(float* offsets, float* factors, int count, int o, int outputs, global const float* bias, ulong bias_stride, int has_bias) {
  ROLLED for (int j = 0; j < count; j++) {
    offsets[j] = o + j < outputs ? OFFSET(bias, o + j) : 0.0f;
    factors[j] = o + j < outputs ? FACTOR(bias, o + j) : 0.0f;
  }
}

/* Write one vector of sums: v = sum * factor + offset (+ to), then the activation. */
#define FINISH_VECTOR(to, sum)               \
  do {                                       \
    vec v_ = (sum) * factor + offset;        \
    if (accumulate) v_ += GLOBAL(to);        \
    ACTIVATE(vec, v_);                       \
    GLOBAL(to) = v_;                         \
  } while (0)

#endif
