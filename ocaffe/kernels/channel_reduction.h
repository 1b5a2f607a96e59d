/* Sums over all values of a channel that a work-group writes (ocaffe/passes/channel_reduction_fusion.py), if CHANNEL_REDUCTION is defined:
   1  statistics: reduced[3][channels][parts], of each channel the number of values, their mean, and the sum of squares of what they differ from it
   2  sums for BatchNorm's backward pass, of which the gradient dy is written: reduced[2][channels][parts], of g and of g * h. h = (x - mean) * inverse is what was
      normalised, g the gradient of h * scale + bias: dy * DERIVATIVE, an expression of `pre`, that sum, in parentheses; without DERIVATIVE there is neither scale nor bias to
      read, and g is dy. x lies as dy does, at a batch stride of its own
   3  sums alone: reduced[1][channels][parts] */
#ifndef OCAFFE_CHANNEL_REDUCTION_H
#define OCAFFE_CHANNEL_REDUCTION_H

#include "common.h"

typedef struct {
#ifdef CHANNEL_REDUCTION
  global float* to;
  ulong apart; /* from one kind of sums to the next */
#if CHANNEL_REDUCTION == 2
  global const NORMAL_T* x;
  global const float *mean, *inverse, *scale, *bias;
  ulong x_stride;
  int x_aligned; /* samples begin at float4 places */
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

/* What a value x of channel c, of which dy is the gradient, adds to the two sums. */
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
