/* The last step before a result is stored: accumulation, then a slope. Without FUSED_RELU the slope is that of a fused forward ReLU:
   y = v > 0 ? v : slope * v.

   FUSED_RELU  fused ReLU backward: another operand, `sign`, selects the elements that pass; all others are multiplied by the slope
     1  an element passes if `sign` is positive at the same position
     2  an element passes if its bit in `sign` is set (sign_mask.cl)
     3  as 1, but applied to the incoming gradient of MAX pooling, before it is scattered to a pixel (pooling_gpu.cl, pooling_plane.cl)

   `element` is an index within the sample that `sign` points at. FUSED_RELU is a define because an argument would cost registers in the
   products' loops. */
#ifndef OCAFFE_FUSED_RELU_H
#define OCAFFE_FUSED_RELU_H

#include "common.h"

#ifdef FUSED_RELU
#define SIGNS_T SIGN_T
#define SIGN OPERAND_RESTRICT(const SIGN_T, sign),
#define SLOPE , float slope
#define LOCATE_SIGN LOCATE(sign)
#define SIGN_ALIGNED (FUSED_RELU != 1 || ((sign_offset | sign_stride) & 3) == 0)
#if FUSED_RELU == 3
#define IF_FUSED_RELU(yes, no) no
#define FUSED_RELU_BEFORE_SCATTER(v, sign, element) (PASSES(sign, element) ? (v) : slope * (v))
#else
#define IF_FUSED_RELU(yes, no) yes
#define FUSED_RELU_BEFORE_SCATTER(v, sign, element) (v)
#endif
#define MASK_WORD(element) ((element) / 1024 * 32 + (element) % 32)
#define MASK_BIT(element) ((element) % 1024 / 32)
#if FUSED_RELU != 2
#define PASSES(sign, element) GET(SIGN_T, (sign) + (element)) > 0.0f
#define PASSES2(sign, element) GET2(SIGN_T, (sign) + (element)) > 0.0f
#define PASSES4(sign, element) GET4(SIGN_T, (sign) + (element)) > 0.0f
#define PASSES8(sign, element) (GET8(BLOCK_T, (global const BLOCK_T*)(sign) + (element)) > 0.0f) /* a block of channels (block_operands.h) */
#else
#define PASSES(sign, element) (((global const uint*)(sign))[MASK_WORD(element)] >> MASK_BIT(element) & 1u) != 0u
#define PASSES2(sign, element) (*(global const uint2*)((global const uint*)(sign) + MASK_WORD(element)) >> (uint)MASK_BIT(element) & 1u) != 0u
#define PASSES4(sign, element) (*(global const uint4*)((global const uint*)(sign) + MASK_WORD(element)) >> (uint)MASK_BIT(element) & 1u) != 0u
#define PASSES8(sign, element) ((vload8(0, (global const uint*)(sign) + MASK_WORD(element)) >> (uint8)(MASK_BIT(element)) & 1u) != 0u)
#endif
#else
#define SIGNS_T RESULT_T /* never read */
#define SIGN
#define SLOPE
#define LOCATE_SIGN
#define SIGN_ALIGNED 1
#define IF_FUSED_RELU(yes, no) no
#define FUSED_RELU_BEFORE_SCATTER(v, sign, element) (v)
#define PASSES(sign, element) v > 0.0f
#endif

/* The argument `sign` of a kernel that applies no mask, in a program whose other kernels do. */
#define NO_SIGN(to) ((global const SIGNS_T*)(to))

/* put4 in two halves: before_four or before_each reads the old values and masks of four results; `after` computes the new values.
   A work-item with many results reads for several of them before its first store. The compiler cannot prove that a store does not alias
   the next read, so it never moves that read ahead of the store. Each read would then wait for memory separately. */
typedef struct { float4 sum; int4 passes; } OWN(Before);

/* before_four: four neighbours at an aligned place; `element`, the first, is a multiple of four. before_each: four results anywhere:
   result e is at to[place[e]], and its mask is that of element[e] + more in the sample at sign + sign_place[e]. */
INLINE Before OWN(before_four)(global const RESULT_T* to, int accumulate, global const SIGNS_T* sign, int element) {
  Before b;
  b.sum = accumulate ? GET4(RESULT_T, to) : (float4)(0.0f);
  b.passes = IF_FUSED_RELU(PASSES4(sign, element), (int4)(0));
  return b;
}

INLINE Before OWN(before_each)(global const RESULT_T* to, const ulong place[4], int accumulate, global const SIGNS_T* sign, const ulong sign_place[4],
                          const int element[4], int more) {
  Before b;
  b.sum = (float4)(0.0f);
  if (accumulate)
    b.sum = (float4)(GET(RESULT_T, to + place[0]), GET(RESULT_T, to + place[1]), GET(RESULT_T, to + place[2]), GET(RESULT_T, to + place[3]));
  b.passes = IF_FUSED_RELU(((int4)(PASSES(sign + sign_place[0], element[0] + more), PASSES(sign + sign_place[1], element[1] + more),
                              PASSES(sign + sign_place[2], element[2] + more), PASSES(sign + sign_place[3], element[3] + more)) != 0),
                      (int4)(0));
  return b;
}

/* Return the values to write. */
INLINE float4 OWN(after)(Before b, float4 v, int accumulate, float slope) {
  if (accumulate) v += b.sum;
  return select(slope * v, v, IF_FUSED_RELU(b.passes, v > 0.0f));
}

/* Write one result, or two or four neighbours. The first of them is at a multiple of their number, at an aligned place.
   Return the values before they are rounded to RESULT_T. */
INLINE float OWN(put)(global RESULT_T* to, float v, int accumulate, float slope, global const SIGNS_T* sign, int element) {
  if (accumulate) v += GET(RESULT_T, to);
  v = PASSES(sign, element) ? v : slope * v;
  SET(RESULT_T, to, v);
  return v;
}

INLINE float2 OWN(put2)(global RESULT_T* to, float2 v, int accumulate, float slope, global const SIGNS_T* sign, int element) {
  if (accumulate) v += GET2(RESULT_T, to);
  v = select(slope * v, v, IF_FUSED_RELU((PASSES2(sign, element)), v > 0.0f));
  SET2(RESULT_T, to, v);
  return v;
}

INLINE float4 OWN(put4)(global RESULT_T* to, float4 v, int accumulate, float slope, global const SIGNS_T* sign, int element) {
  v = after(before_four(to, accumulate, sign, element), v, accumulate, slope);
  SET4(RESULT_T, to, v);
  return v;
}

#endif
