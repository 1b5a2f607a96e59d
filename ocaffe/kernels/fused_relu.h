/* The last step of a result: added to what is there or not, then a slope. Without FUSED_RELU it is that of a ReLU that was merged: y = v > 0 ? v : slope * v.
   FUSED_RELU  the backward pass of a ReLU: another operand, `sign`, decides at the same place. 1: where it is positive the value passes; 2: where a bit is set (sign_mask.cl);
         3: as 1, but at the place of the gradient that MAX pooling is given, before it goes to one pixel (pooling_gpu.cl, pooling_plane.cl)
   An element is counted within its sample, where `sign` points. It is a define, for an argument costs registers in the products' loops. */
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
#else
#define PASSES(sign, element) (((global const uint*)(sign))[MASK_WORD(element)] >> MASK_BIT(element) & 1u) != 0u
#define PASSES2(sign, element) (*(global const uint2*)((global const uint*)(sign) + MASK_WORD(element)) >> (uint)MASK_BIT(element) & 1u) != 0u
#define PASSES4(sign, element) (*(global const uint4*)((global const uint*)(sign) + MASK_WORD(element)) >> (uint)MASK_BIT(element) & 1u) != 0u
#endif
#else
#define SIGNS_T RESULT_T /* nothing is read of it */
#define SIGN
#define SLOPE
#define LOCATE_SIGN
#define SIGN_ALIGNED 1
#define IF_FUSED_RELU(yes, no) no
#define FUSED_RELU_BEFORE_SCATTER(v, sign, element) (v)
#define PASSES(sign, element) v > 0.0f
#endif

/* What a kernel that is never gated gives as `sign`, in a program for one that is. */
#define NO_SIGN(to) ((global const SIGNS_T*)(to))

/* The two halves of `put` for four results: what stands at their places, and writing them. A work-item that has many looks at several places before it writes
   to the first: after a write nothing may be read ahead, for the compiler cannot know that it is another place, and each look waits for memory alone. */
typedef struct { float4 sum; int4 passes; } Before;

/* They are neighbours, the first a multiple of four, at an aligned place; or wherever `place` says, `element` in the gate's sample. */
INLINE Before before_four(global const RESULT_T* to, int accumulate, global const SIGNS_T* sign, int element) {
  Before b;
  b.sum = accumulate ? GET4(RESULT_T, to) : (float4)(0.0f);
  b.passes = IF_FUSED_RELU(PASSES4(sign, element), (int4)(0));
  return b;
}

INLINE Before before_each(global const RESULT_T* to, const ulong place[4], int accumulate, global const SIGNS_T* sign, const ulong sign_place[4],
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

/* What is to be written. */
INLINE float4 after(Before b, float4 v, int accumulate, float slope) {
  if (accumulate) v += b.sum;
  return select(slope * v, v, IF_FUSED_RELU(b.passes, v > 0.0f));
}

/* One result, and two or four neighbouring ones, the first a multiple of as many, at an aligned place. Returned is what is written, before it is
   rounded if it stands there in 16 bits. */
INLINE float put(global RESULT_T* to, float v, int accumulate, float slope, global const SIGNS_T* sign, int element) {
  if (accumulate) v += GET(RESULT_T, to);
  v = PASSES(sign, element) ? v : slope * v;
  SET(RESULT_T, to, v);
  return v;
}

INLINE float2 put2(global RESULT_T* to, float2 v, int accumulate, float slope, global const SIGNS_T* sign, int element) {
  if (accumulate) v += GET2(RESULT_T, to);
  v = select(slope * v, v, IF_FUSED_RELU((PASSES2(sign, element)), v > 0.0f));
  SET2(RESULT_T, to, v);
  return v;
}

INLINE float4 put4(global RESULT_T* to, float4 v, int accumulate, float slope, global const SIGNS_T* sign, int element) {
  v = after(before_four(to, accumulate, sign, element), v, accumulate, slope);
  SET4(RESULT_T, to, v);
  return v;
}

#endif
