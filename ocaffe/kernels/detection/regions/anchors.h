/* Boxes of region proposal networks: (x1, y1, x2, y2) in pixels. Both corners are inside the box, so a side is x2 - x1 + 1. */
#ifndef OCAFFE_ANCHORS_H
#define OCAFFE_ANCHORS_H

#include "boxes.h"

#ifndef STEP_ITERATION
#define STEP_ITERATION 1
#define STEP_PASS 2
#define STEP_SAMPLE 3
#endif

/* Return anchor a of the cell (row, column). */
float4 OWN(anchor_at)(global const float* anchors, const int a, const int row, const int column, const float stride) {
  return vload4(a, anchors) + (float4)(column, row, column, row) * stride;
}

float2 OWN(sides_of)(const float4 box) { return box.hi - box.lo + 1; }

float OWN(overlap)(const float4 a, const float4 b) { return box_overlap(a, b, 1); }

/* Return the regression target from box `from` to box `to`: the shift of the centre in sides, and the logarithm of the growth. */
float4 OWN(encode)(const float4 from, const float4 to) {
  const float2 sides = sides_of(from), wanted = sides_of(to);
  return (float4)((to.lo + 0.5f * wanted - from.lo - 0.5f * sides) / sides, log(wanted / sides));
}

float4 OWN(decode)(const float4 from, const float4 delta) {
  const float2 sides = sides_of(from), centre = from.lo + 0.5f * sides + delta.lo * sides, reach = 0.5f * exp(delta.hi) * sides;
  return (float4)(centre - reach, centre + reach);
}

/* Return a random number for a candidate. Candidates with the smallest numbers are selected. */
uint OWN(ticket)(const uint i, global const uint* step, const uint2 key) {
  return philox((uint4)(i, step[STEP_SAMPLE], step[STEP_ITERATION], step[STEP_PASS]), key).x;
}

#endif
