/* The last step of a result: added to what is there or not, then a slope. Without GATE it is that of a ReLU that was merged: y = v > 0 ? v : slope * v.
   GATE  the backward pass of a ReLU: another operand, `sign`, decides at the same place. 1: where it is positive the value passes; 2: where a bit is set (sign_mask.cl)
   An element is counted within its sample, where `sign` points. It is a define, for an argument costs registers in the products' loops. */
#ifndef OCAFFE_GATE_H
#define OCAFFE_GATE_H

#include "common.h"

#ifdef GATE
#define SIGN OPERAND_RESTRICT(const float, sign),
#define SLOPE , float slope
#define LOCATE_SIGN LOCATE(sign)
#define SIGN_ALIGNED (GATE == 2 || ((sign_offset | sign_stride) & 3) == 0)
#define IF_GATED(yes, no) yes
#define GATE_WORD(element) ((element) / 1024 * 32 + (element) % 32)
#define GATE_BIT(element) ((element) % 1024 / 32)
#if GATE == 1
#define PASSES(sign, element) (sign)[element] > 0.0f
#define PASSES4(sign, element) *(global const float4*)((sign) + (element)) > 0.0f
#else
#define PASSES(sign, element) (((global const uint*)(sign))[GATE_WORD(element)] >> GATE_BIT(element) & 1u) != 0u
#define PASSES4(sign, element) (*(global const uint4*)((global const uint*)(sign) + GATE_WORD(element)) >> (uint)GATE_BIT(element) & 1u) != 0u
#endif
#else
#define SIGN
#define SLOPE
#define LOCATE_SIGN
#define SIGN_ALIGNED 1
#define IF_GATED(yes, no) no
#define PASSES(sign, element) v > 0.0f
#define PASSES4(sign, element) v > 0.0f
#endif

/* One result, and four neighbouring ones, the first a multiple of four, at an aligned place. Returned is what is written. */
INLINE float put(global float* to, float v, int accumulate, float slope, global const float* sign, int element) {
  if (accumulate) v += *to;
  v = PASSES(sign, element) ? v : slope * v;
  *to = v;
  return v;
}

INLINE float4 put4(global float* to, float4 v, int accumulate, float slope, global const float* sign, int element) {
  if (accumulate) v += *(global float4*)to;
  v = select(slope * v, v, PASSES4(sign, element));
  *(global float4*)to = v;
  return v;
}

#endif
