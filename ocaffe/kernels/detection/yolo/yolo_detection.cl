/* From predictions of YOLO to rows of detections, and their comparison with true boxes (ocaffe/kernels/detection/yolo/yolo_detection.py). No defines.
 *
 * Work-items: decode: (slots of a bottom, images). rows: rows. evaluate: (classes, images).
 */
#include "yolo.h"

#define OBJECT 0 /* EvalDetectionParameter.ScoreType */
#define PROBABILITY 1

/* boxes (corners), scores and labels of the slots of one bottom, from slot `first` on. A slot is an anchor of a cell: anchor * cells + cell. The label is
   the class with the highest score. is_independent: the probability of a class is the sigmoid of its score, else it is by a softmax. kind: the score. */
kernel void decode(OPERAND(const float, x), OPERAND(const float, anchors), OPERAND(float, boxes), OPERAND(float, scores), OPERAND(int, labels),
                   const int count, const int first, const int classes, const int width, const int height, const int is_independent, const int kind) {
  const int p = get_global_id(0), n = get_global_id(1);
  if (p >= count) return;
  LOCATE(x);
  LOCATE(anchors);
  LOCATE(boxes);
  LOCATE(scores);
  LOCATE(labels);
  const int cells = width * height, a = p / cells, cell = p % cells;
  x += n * x_stride + (ulong)(a * (classes + CHANNELS)) * cells + cell;
  const float4 raw = (float4)(x[0], x[cells], x[2 * cells], x[3 * cells]);
  const float4 box = predicted_box(raw, vload2(a, anchors), cell % width, cell / width, width, height);
  vstore4((float4)(box.lo - box.hi / 2, box.lo + box.hi / 2), first + p, boxes + n * boxes_stride);
  const float objectness = sigmoid(x[4 * cells]);
  x += CHANNELS * cells;
  int label = 0;
  float top = x[0], sum = 0;
  for (int c = 1; c < classes; c++) {
    if (x[c * cells] > top) {
      top = x[c * cells];
      label = c;
    }
  }
  for (int c = 0; c < (is_independent ? 0 : classes); c++) sum += exp(x[c * cells] - top);
  const float probability = is_independent ? sigmoid(top) : 1 / sum;
  scores[n * scores_stride + first + p] = kind == OBJECT ? objectness : kind == PROBABILITY ? probability : objectness * probability;
  labels[n * labels_stride + first + p] = label;
}

/* y: image, label from 1 on, score, xmin, ymin, xmax, ymax. kept: the slots of the detections of each image, in their order; offsets: where the rows of
   each image begin. Rows after the last detection belong to images in a batch without detections. */
kernel void rows(OPERAND(const float, boxes), OPERAND(const float, scores), OPERAND(const int, labels), OPERAND(const int, kept),
                 OPERAND(const int, offsets), OPERAND(float, y), const int count, const int images) {
  const int row = get_global_id(0);
  if (row >= count) return;
  LOCATE(boxes);
  LOCATE(scores);
  LOCATE(labels);
  LOCATE(kept);
  LOCATE(offsets);
  LOCATE(y);
  y += row * 7;
  if (row >= offsets[images]) {
    for (int i = 0; i < 7; i++) y[i] = i == 0 && row < images ? row : -1;
    return;
  }
  int n = 0;
  while (row >= offsets[n + 1]) n++;
  const int p = kept[n * kept_stride + row - offsets[n]];
  y[0] = n;
  y[1] = labels[n * labels_stride + p] + 1;
  y[2] = scores[n * scores_stride + p];
  vstore4(vload4(p, boxes + n * boxes_stride), 0, y + 3);
}

/* y: for each image the numbers of true boxes of the classes; then label, score, whether it is a true positive and whether a false one, of each
   detection, by class. y holds zeros before. truth, counts: the true boxes (yolo_loss.cl). used (images x most): scratch. */
kernel void evaluate(OPERAND(const float, boxes), OPERAND(const float, scores), OPERAND(const int, labels), OPERAND(const int, kept),
                     OPERAND(const int, kept_counts), OPERAND(const float, truth), OPERAND(const int, counts), OPERAND(int, used), OPERAND(float, y),
                     const int classes, const float threshold) {
  const int label = get_global_id(0), n = get_global_id(1);
  if (label >= classes) return;
  LOCATE(boxes);
  LOCATE(scores);
  LOCATE(labels);
  LOCATE(kept);
  LOCATE(kept_counts);
  LOCATE(truth);
  LOCATE(counts);
  LOCATE(used);
  LOCATE(y);
  boxes += n * boxes_stride;
  scores += n * scores_stride;
  labels += n * labels_stride;
  kept += n * kept_stride;
  truth += n * truth_stride;
  used += n * used_stride;
  y += n * y_stride;
  const int found = kept_counts[n * kept_counts_stride], true_boxes = counts[n * counts_stride];
  int own = 0, before = 0;
  for (int t = 0; t < true_boxes; t++) {
    if ((int)truth[5 * t] != label) continue;
    own++;
    used[t] = 0;
  }
  y[label] = own;
  for (int k = 0; k < found; k++) before += labels[kept[k]] < label;
  y += classes + 4 * before;
  for (int k = 0; k < found; k++) {
    const int p = kept[k];
    if (labels[p] != label) continue;
    const float4 corners = vload4(p, boxes), box = (float4)((corners.lo + corners.hi) / 2, corners.hi - corners.lo);
    float best = -1;
    int match = -1;
    for (int t = 0; t < true_boxes; t++) {
      if ((int)truth[5 * t] != label) continue;
      const float overlap = centred_overlap(box, vload4(0, truth + 5 * t + 1));
      if (overlap > best) {
        best = overlap;
        match = t;
      }
    }
    y[0] = label;
    y[1] = scores[p];
    if (match < 0) {
      y[3] = 1;
    } else if (best >= threshold) {
      y[used[match] ? 3 : 2] = 1;
      used[match] = 1;
    }
    y += 4;
  }
}
