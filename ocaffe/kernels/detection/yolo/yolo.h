/* Boxes of YOLO: centre x, centre y, width, height, relative to the image.
   A prediction has these channels: the logits of the centre within its cell, the logarithms of the sides, the logit of the objectness, the scores of the
   classes. The sides are in sides of the anchor. */
#ifndef OCAFFE_YOLO_H
#define OCAFFE_YOLO_H

#include "common.h"

#define CHANNELS 5 /* before the scores of classes */

float sigmoid(const float x) { return 1 / (1 + exp(-x)); }

/* Return the predicted box of a cell. anchor: its sides, relative to the image. raw: the first four channels. */
float4 predicted_box(const float4 raw, const float2 anchor, const int column, const int row, const int width, const int height) {
  return (float4)((column + sigmoid(raw.x)) / width, (row + sigmoid(raw.y)) / height, exp(raw.z) * anchor.x, exp(raw.w) * anchor.y);
}

/* Intersection over union of boxes with the same centre. */
float sides_overlap(const float2 a, const float2 b) {
  const float shared = fmin(a.x, b.x) * fmin(a.y, b.y);
  return shared / (a.x * a.y + b.x * b.y - shared);
}

/* Intersection over union. */
float centred_overlap(const float4 a, const float4 b) {
  const float2 sides = fmin(a.lo + a.hi / 2, b.lo + b.hi / 2) - fmax(a.lo - a.hi / 2, b.lo - b.hi / 2);
  if (sides.x < 0 || sides.y < 0) return 0;
  const float shared = sides.x * sides.y;
  return shared / (a.z * a.w + b.z * b.w - shared);
}

#endif
