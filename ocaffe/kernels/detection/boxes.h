/* Boxes (xmin, ymin, xmax, ymax): size, overlap and SSD's encoding. `pixel` is added to every side: 1 if both corner pixels are inside the
   box, else 0. */
#ifndef OCAFFE_BOXES_H
#define OCAFFE_BOXES_H

#include "common.h"

/* Decisions depend on the last bit of an overlap, and Caffe's CPU code has no fused multiply-add. */
#pragma OPENCL FP_CONTRACT OFF

/* Return a / b correctly rounded: OpenCL's division may be 2.5 ulp off. */
float OWN(quotient)(const float a, const float b) {
  const float q = a / b;
  return q + fma(-q, b, a) / b;
}

/* Return the area, or 0 for an inverted box. */
float OWN(box_size)(const float4 box, const float pixel) {
  const float2 sides = box.hi - box.lo;
  return sides.x < 0 || sides.y < 0 ? 0 : (sides.x + pixel) * (sides.y + pixel);
}

/* Intersection over union. */
float OWN(box_overlap)(const float4 a, const float4 b, const float pixel) {
  const float2 sides = fmin(a.hi, b.hi) - fmax(a.lo, b.lo) + pixel;
  if (!(sides.x > 0 && sides.y > 0)) return 0;
  const float shared = sides.x * sides.y;
  return quotient(shared, box_size(a, pixel) + box_size(b, pixel) - shared);
}

/* PriorBoxParameter.CodeType */
#define CORNER 1
#define CENTER_SIZE 2
#define CORNER_SIZE 3

/* SSD's encoding of a box relative to a prior. CORNER: difference of the corners; CORNER_SIZE: the same in sides of the prior; CENTER_SIZE:
 * shift of the centre in sides and logarithm of the growth. Each is divided by its variance (1 if the target already includes it). */
float4 OWN(box_encode)(const float4 prior, const float4 variance, const float4 box, const int code) {
  const float4 sides = (float4)(prior.hi - prior.lo, prior.hi - prior.lo);
  float4 result = box - prior;
  if (code == CORNER_SIZE) result /= sides;
  if (code == CENTER_SIZE) {
    result.lo = ((box.lo + box.hi) / 2 - (prior.lo + prior.hi) / 2) / sides.lo;
    result.hi = log((box.hi - box.lo) / sides.hi);
  }
  return result / variance;
}

float4 OWN(box_decode)(const float4 prior, const float4 variance, const float4 prediction, const int code) {
  const float4 sides = (float4)(prior.hi - prior.lo, prior.hi - prior.lo), way = variance * prediction;
  if (code == CORNER) return prior + way;
  if (code == CORNER_SIZE) return prior + way * sides;
  const float2 centre = way.lo * sides.lo + (prior.lo + prior.hi) / 2, reach = exp(way.hi) * sides.hi / 2;
  return (float4)(centre - reach, centre + reach);
}

#endif
