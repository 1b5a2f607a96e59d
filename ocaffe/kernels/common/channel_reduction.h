/* Channel reductions that a work-group of a product writes next to its result (ocaffe/passes/channel_reduction_fusion.py).

   CHANNEL_REDUCTION
     1  statistics: reduced[3][channels][parts]; per channel the number of values, their mean, and the sum of squared deviations from it
     2  sums for BatchNorm's backward pass, where the result is its output gradient dy: reduced[2][channels][parts]; the sums of g and of g * h.
        h = (x - mean) * inverse is the normalized input, g the gradient of h * scale + bias
     3  sums only: reduced[1][channels][parts]
   DERIVATIVE  for 2: g = dy * DERIVATIVE, an expression in parentheses of `pre` = h * scale + bias. Without it g = dy, and scale and bias
               are not read

   For 2, x has the layout of dy, with its own batch stride. */
#ifndef OCAFFE_CHANNEL_REDUCTION_H
#define OCAFFE_CHANNEL_REDUCTION_H

#include "common.h"

typedef struct {
#ifdef CHANNEL_REDUCTION
  global float* to;
  ulong apart; /* distance between two kinds of sums */
#if CHANNEL_REDUCTION == 2
  global const NORMAL_T* x;
  global const float *mean, *inverse, *scale, *bias;
  ulong x_stride;
  int x_aligned; /* samples begin at multiples of 4 elements */
#endif
#else
  int none;
#endif
} ChannelReduction;

#ifndef CHANNEL_REDUCTION
#define REDUCTION_OPERANDS
#define REDUCTION_ARGUMENT (ChannelReduction){0}
#elif CHANNEL_REDUCTION != 2
#define REDUCTION_OPERANDS OPERAND_RESTRICT(float, reduced),
#define REDUCTION_ARGUMENT (ChannelReduction){reduced + reduced_offset, reduced_stride}
#else
#define REDUCTION_OPERANDS                                                                                                                             \
  OPERAND_RESTRICT(float, reduced), OPERAND_RESTRICT(const NORMAL_T, normal), OPERAND_RESTRICT(const float, mean), OPERAND_RESTRICT(const float, inverse), \
      OPERAND_RESTRICT(const float, scale), OPERAND_RESTRICT(const float, shift),
#define REDUCTION_ARGUMENT                                                                                                                           \
  (ChannelReduction){reduced + reduced_offset, reduced_stride, normal + normal_offset, mean + mean_offset, inverse + inverse_offset, scale + scale_offset, \
               shift + shift_offset, normal_stride, ((normal_offset | normal_stride) & 3) == 0}

/* Return the contribution of a value x of channel c with gradient dy to the two sums. */
INLINE float2 gradient_sums(const ChannelReduction s, int c, float x, float dy) {
  const float h = (x - s.mean[c]) * s.inverse[c];
#ifdef DERIVATIVE
  const float pre = h * s.scale[c] + s.bias[c];
  const float g = dy * DERIVATIVE;
#else
  const float g = dy;
#endif
  return (float2)(g, g * h);
}
#endif

#endif
