/* AssistedExcitation: mask = cos(pi / 2 * iteration / last) * mean inside the boxes of an image, 0 outside.
 *
 * A box is (class, centre x, centre y, width, height), relative to the image; the first box with centre x 0 ends the list. Its sides are rounded to
 * whole pixels. STEP_ITERATION: the place of the iteration in the step buffer.
 * Work-items: (pixels, images).
 */
#include "common.h"

#ifndef STEP_ITERATION
#define STEP_ITERATION 1
#endif

kernel void ENTRY(mask)(OPERAND(const float, boxes), OPERAND(const float, mean), OPERAND(const uint, step), OPERAND(float, mask), const int height,
                 const int width, const int most, const float last) {
  LOCATE(boxes);
  LOCATE(mean);
  LOCATE(step);
  LOCATE(mask);
  const int i = get_global_id(0), n = get_global_id(1), row = i / width, column = i % width;
  if (i >= height * width) return;
  boxes += (ulong)n * boxes_stride;
  int inside = 0;
  for (int k = 0; k < most && !inside; k++) {
    const global float* box = boxes + 5 * k;
    if (box[1] == 0) break;
    const int left = (int)((box[1] - box[3] / 2) * width + 0.5f), right = (int)((box[1] + box[3] / 2) * width + 0.5f);
    const int top = (int)((box[2] - box[4] / 2) * height + 0.5f), bottom = (int)((box[2] + box[4] / 2) * height + 0.5f);
    inside = left <= column && column < right && top <= row && row < bottom;
  }
  mask[(ulong)n * mask_stride + i] = inside ? cos(M_PI_2_F * (float)step[STEP_ITERATION] / last) * mean[(ulong)n * mean_stride + i] : 0;
}
