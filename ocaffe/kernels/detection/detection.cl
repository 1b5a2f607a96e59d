/* DetectionOutput: from predictions to rows of detections (ocaffe/kernels/detection/detection.py); nms.cl selects among them. No defines.
 *
 * Work-items: decode: (boxes of an image, images). scores: (classes * listed, images). offsets: one. rows: rows.
 */
#include "boxes.h"

/* boxes: P x L of an image, for P priors and L classes with separate boxes (1 if they share them). in_target: the variance is not applied. */
kernel void ENTRY(decode)(OPERAND(const float, loc), OPERAND(const float, priors), OPERAND(float, boxes), const int count, const int own, const int code,
                   const int in_target) {
  const int i = get_global_id(0), n = get_global_id(1);
  if (i >= count) return;
  LOCATE(loc);
  LOCATE(priors);
  LOCATE(boxes);
  const int p = i / own;
  const float4 variance = in_target ? (float4)(1) : vload4(count / own + p, priors);
  vstore4(box_decode(vload4(p, priors), variance, vload4(i, loc + n * loc_stride), code), i, boxes + n * boxes_stride);
}

/* scores: of the candidates that each class keeps, in the order of the class; -INFINITY after the last. */
kernel void ENTRY(scores)(OPERAND(const float, conf), OPERAND(const int, kept), OPERAND(const int, counts), OPERAND(float, scores), const int count,
                   const int classes, const int listed) {
  const int i = get_global_id(0), n = get_global_id(1);
  if (i >= count) return;
  LOCATE(conf);
  LOCATE(kept);
  LOCATE(counts);
  LOCATE(scores);
  const int c = i / listed;
  const bool is_kept = i % listed < counts[n * counts_stride + c];
  scores[n * scores_stride + i] = is_kept ? conf[n * conf_stride + kept[n * kept_stride + i] * classes + c] : -INFINITY;
}

/* offsets (images + 1): where the rows of each image begin. extent: the number of rows; if nothing was detected, one for each image. */
kernel void ENTRY(offsets)(OPERAND(const int, counts), OPERAND(int, offsets), OPERAND(int, extent), const int images) {
  LOCATE(counts);
  LOCATE(offsets);
  LOCATE(extent);
  int sum = 0;
  for (int n = 0; n < images; n++) {
    offsets[n] = sum;
    sum += counts[n * counts_stride];
  }
  offsets[images] = sum;
  extent[0] = sum > 0 ? sum : images;
}

/* y: image, label, score, xmin, ymin, xmax, ymax. chosen: the places of the rows among an image's scores, in order. */
kernel void ENTRY(rows)(OPERAND(const float, conf), OPERAND(const float, boxes), OPERAND(const int, kept), OPERAND(const int, chosen),
                 OPERAND(const int, offsets), OPERAND(float, y), const int count, const int images, const int classes, const int own,
                 const int listed) {
  const int row = get_global_id(0);
  if (row >= count) return;
  LOCATE(conf);
  LOCATE(boxes);
  LOCATE(kept);
  LOCATE(chosen);
  LOCATE(offsets);
  LOCATE(y);
  y += row * 7;
  if (row >= offsets[images]) {
    for (int i = 0; i < 7; i++) y[i] = i == 0 && row < images ? row : -1;
    return;
  }
  int n = 0;
  while (row >= offsets[n + 1]) n++;
  const int place = chosen[n * chosen_stride + row - offsets[n]], c = place / listed, p = kept[n * kept_stride + place];
  y[0] = n;
  y[1] = c;
  y[2] = conf[n * conf_stride + p * classes + c];
  vstore4(vload4(p * own + (own > 1 ? c : 0), boxes + n * boxes_stride), 0, y + 3);
}
