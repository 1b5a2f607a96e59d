/* Proposal: the boxes that a region proposal network predicts. Proposal number k = (row W + column) A + a.
 *
 * STEP_*  words of the step buffer (ocaffe/ir/recorder.py); these kernels draw no random numbers
 *
 * Work-items: candidates: anchors; chosen: rows.
 */
#include "anchors.h"

/* boxes: the anchors moved by deltas (4 A x H x W) and clipped to the image. scores: the second half of x (2 A x H x W). They
 * are -INFINITY if a side of the box is less than `smallest` pixels of the unscaled image, or if a value is NaN. info: height, width and scale of the image. */
kernel void ENTRY(candidates)(OPERAND(const float, x), OPERAND(const float, deltas), OPERAND(const float, info), OPERAND(const float, anchors),
                       OPERAND(float, boxes), OPERAND(float, scores), const int count, const int H, const int W, const float stride,
                       const float smallest) {
  LOCATE(x);
  LOCATE(deltas);
  LOCATE(info);
  LOCATE(anchors);
  LOCATE(boxes);
  LOCATE(scores);
  const int i = get_global_id(0), size = H * W, a = i / size, cell = i % size, A = count / size, k = cell * A + a;
  if (i >= count) return;
  deltas += 4 * a * size + cell;
  const float4 delta = (float4)(deltas[0], deltas[size], deltas[2 * size], deltas[3 * size]);
  const float4 box = decode(anchor_at(anchors, a, cell / W, cell % W, stride), delta);
  const float2 last = (float2)(info[1], info[0]) - 1;
  const float4 cut = fmax(fmin(box, (float4)(last, last)), 0);
  const float2 sides = sides_of(cut);
  const float score = x[count + i];
  const bool fits = !isnan(score) && !any(isnan(box)) && sides.x >= smallest * info[2] && sides.y >= smallest * info[2];
  vstore4(cut, k, boxes);
  scores[k] = fits ? score : -INFINITY;
}

/* Rows (image 0, x1, y1, x2, y2) and scores of the kept proposals; extent: how many. Rows after them are padding: image -1. */
kernel void ENTRY(chosen)(OPERAND(const int, kept), OPERAND(const int, extent), OPERAND(const float, boxes), OPERAND(const float, scores),
                   OPERAND(float, rois), OPERAND(float, values), const int count) {
  LOCATE(kept);
  LOCATE(extent);
  LOCATE(boxes);
  LOCATE(scores);
  LOCATE(rois);
  LOCATE(values);
  const int row = get_global_id(0);
  if (row >= count) return;
  const bool found = row < extent[0];
  const int k = found ? kept[row] : 0;
  rois[5 * row] = found ? 0.0f : -1.0f; /* floats: see label in anchor_target.cl */
  vstore4(found ? vload4(k, boxes) : (float4)(0), 0, rois + 5 * row + 1);
  values[row] = found ? scores[k] : 0;
}
