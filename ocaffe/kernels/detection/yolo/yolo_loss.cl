/* The losses RegionLoss and Yolov3 (ocaffe/kernels/detection/yolo/yolo_loss.py): list the true boxes, assign them to anchors,
 * compute differences and gradients.
 *
 * A slot is an anchor of a cell, slot = anchor * cells + cell. A true box is assigned to one slot at most; a slot may have several boxes, and processes
 * them in their order, as a sequential program does. `settings` are those of ocaffe/kernels/detection/yolo/yolo_loss.py. STEP_ITERATION: the place
 * of the iteration in the step buffer.
 * Work-items: list_boxes: images. assign: (most, images). differences: (slots, images). gradients: (channels * cells, images).
 */
#include "yolo.h"

#ifndef STEP_ITERATION
#define STEP_ITERATION 1
#endif

#define FORM ((int)settings[0])
#define CLASSES ((int)settings[1])
#define THRESH settings[2]
#define OBJECT_SCALE settings[3]
#define NOOBJECT_SCALE settings[4]
#define CLASS_SCALE settings[5]
#define COORD_SCALE settings[6]
#define MATCHES_PREDICTIONS (settings[7] != 0)
#define RESCORES (settings[8] != 0)
#define LOGIC_GRADIENT (settings[9] != 0)
#define FOCAL (settings[10] != 0)
#define IOU_LOSS ((int)settings[11])
#define IOU_SCALE settings[12]
#define WARM ((int)settings[13])

#define REGION 0
#define YOLO9000 1
#define YOLOV3 2
#define IOU 0 /* Yolov3Parameter.IOU_LOSS */
#define GIOU 1
#define MSE 2
#define WARM_SCALE 0.01f
#define FOCAL_ALPHA 0.5f

#define BOX 5 /* floats of a true box: class, then the box */

/* truth (images x most x BOX), counts: the true boxes of each image. bad: whether one has a class that does not exist. has_rows: `label` has rows of
   image, label, instance, xmin, ymin, xmax, ymax, difficult, with labels from 1 on; else each image has rows of class and box, up to the first with 0. */
kernel void list_boxes(OPERAND(const float, label), OPERAND(float, truth), OPERAND(int, counts), OPERAND(int, bad), const int images,
                       const int has_rows, const int most, const int classes) {
  const int n = get_global_id(0);
  if (n >= images) return;
  LOCATE(label);
  LOCATE(truth);
  LOCATE(counts);
  LOCATE(bad);
  truth += n * truth_stride;
  int found = 0, wrong = 0;
  for (int t = 0; t < most; t++) {
    float kind;
    float4 box;
    if (has_rows) {
      const global float* row = label + 8 * t;
      if (trunc(row[0]) != n) continue;
      const float2 low = vload2(0, row + 3), high = vload2(0, row + 5);
      kind = trunc(row[1]) - 1;
      box = (float4)((low + high) / 2, high - low);
    } else {
      const global float* row = label + n * label_stride + BOX * t;
      kind = row[0];
      box = vload4(0, row + 1);
      if (box.x == 0 || box.z == 0) break;
    }
    if (!(box.z > 0 && box.w > 0)) continue;
    wrong |= !(kind > -1 && kind < classes);
    truth[BOX * found] = kind;
    vstore4(box, 0, truth + BOX * found + 1);
    found++;
  }
  counts[n * counts_stride] = found;
  bad[n * bad_stride] = wrong;
}

#define TRUTH(t) vload4(0, truth + BOX * (t) + 1)

/* slots (images x most): the slot of each true box, or -1. anchors (candidates x 2): sides, relative to the image. mask: the candidates that the
   bottom predicts, in their order. The candidate with the largest overlap is chosen, the first of equal ones. */
kernel void assign(OPERAND(const float, settings), OPERAND(const float, anchors), OPERAND(const int, mask), OPERAND(const float, x),
                   OPERAND(const float, truth), OPERAND(const int, counts), OPERAND(int, slots), const int most, const int candidates,
                   const int predicted, const int width, const int height) {
  const int t = get_global_id(0), n = get_global_id(1);
  if (t >= most) return;
  LOCATE(settings);
  LOCATE(anchors);
  LOCATE(mask);
  LOCATE(x);
  LOCATE(truth);
  LOCATE(counts);
  LOCATE(slots);
  slots += n * slots_stride;
  slots[t] = -1;
  if (t >= counts[n * counts_stride]) return;
  x += n * x_stride;
  truth += n * truth_stride;
  const float4 box = TRUTH(t);
  if (!(box.x >= 0 && box.x < 1 && box.y >= 0 && box.y < 1)) return;
  const int cells = width * height, cell = min((int)(box.y * height), height - 1) * width + min((int)(box.x * width), width - 1);
  float best = 0;
  int chosen = -1;
  for (int a = 0; a < candidates; a++) {
    float2 sides = vload2(a, anchors);
    if (MATCHES_PREDICTIONS) {
      const global float* raw = x + (ulong)(a * (CLASSES + CHANNELS)) * cells + cell;
      sides *= exp((float2)(raw[2 * cells], raw[3 * cells]));
    }
    const float overlap = sides_overlap(sides, box.hi);
    if (overlap > best) {
      best = overlap;
      chosen = a;
    }
  }
  for (int a = predicted - 1; a >= 0; a--)
    if (mask[a] == chosen) slots[t] = a * cells + cell;
}

/* Return scale * (prediction - target) for the first four channels. target: centre within the cell, logarithms of the sides in sides of the anchor. */
float4 squared_difference(const int form, const float4 raw, const float4 target, const float scale) {
  const float2 centre = (float2)(sigmoid(raw.x), sigmoid(raw.y));
  float4 d = (float4)(centre, raw.hi) - target;
  if (form == YOLO9000) d = clamp(d, -1.0f, 1.0f);
  if (form != YOLOV3) d.lo *= centre * (1 - centre);
  return scale * d;
}

/* Return the (generalised, if `giou`) intersection over union of a predicted box with a true one. slope: its derivative by the centre and by the
   logarithms of the sides, up to the sides of the anchor. */
float overlap_loss(const float4 box, const float4 truth, const float2 growth, const int giou, float4* slope) {
  const float2 low = box.lo - box.hi / 2, high = box.lo + box.hi / 2, true_low = truth.lo - truth.hi / 2, true_high = truth.lo + truth.hi / 2;
  const float2 sides = fmax(fmin(high, true_high) - fmax(low, true_low), 0.0f), hull = fmax(high, true_high) - fmin(low, true_low);
  const float shared = sides.x * sides.y, all = box.z * box.w + truth.z * truth.w - shared, around = hull.x * hull.y;
  const float2 across = (float2)(sides.y, sides.x), box_across = (float2)(box.w, box.z), hull_across = (float2)(hull.y, hull.x);
  const bool apart = !(sides.x > 0 && sides.y > 0);
  float2 ends[2]; /* derivatives by the low and the high edges */
  for (int end = 0; end < 2; end++) {
    const float sign = end ? 1 : -1;
    const int2 inside = end ? high < true_high : low > true_low, outside = end ? high > true_high : low < true_low;
    const float2 shared_slope = apart ? (float2)(0) : select((float2)(0), sign * across, inside), all_slope = sign * box_across - shared_slope;
    ends[end] = all > 0 ? (all * shared_slope - shared * all_slope) / (all * all) : (float2)(0);
    if (giou && around > 0) ends[end] += (around * all_slope - all * select((float2)(0), sign * hull_across, outside)) / (around * around);
  }
  *slope = (float4)(ends[0] + ends[1], (ends[1] - ends[0]) / 2 * growth);
  return shared / all - (around > 0 ? (around - all) / around : 0);
}

/* Write the differences of the classes for a box of class `label`. A second box of a slot adds its class to those of the first (Yolov3). */
void class_difference(global const float* settings, global const float* scores, global float* delta, const int cells, const int label, const int is_first) {
  if (FORM == YOLOV3 && !is_first && delta[0] != 0) {
    delta[label * cells] = sigmoid(scores[label * cells]) - 1;
    return;
  }
  float top = scores[0], sum = 0, scale = CLASS_SCALE;
  if (FORM != YOLOV3) {
    for (int c = 1; c < CLASSES; c++) top = fmax(top, scores[c * cells]);
    for (int c = 0; c < CLASSES; c++) sum += exp(scores[c * cells] - top);
  } else if (FOCAL) {
    const float p = sigmoid(scores[label * cells]) + 1e-15f;
    scale *= FOCAL_ALPHA * (p - 1) * (2 * p * log(p) + p - 1);
  }
  for (int c = 0; c < CLASSES; c++) {
    const float score = scores[c * cells];
    delta[c * cells] = scale * ((FORM == YOLOV3 ? sigmoid(score) : exp(score - top) / sum) - (c == label));
  }
}

/* delta: the differences, of the shape of x. losses (images x slots): the loss of each slot. */
kernel void differences(OPERAND(const float, settings), OPERAND(const float, anchors), OPERAND(const int, mask), OPERAND(const float, x),
                        OPERAND(const float, truth), OPERAND(const int, counts), OPERAND(const int, bad), OPERAND(const int, slots),
                        OPERAND(const uint, step), OPERAND(float, delta), OPERAND(float, losses), const int count, const int width,
                        const int height) {
  const int p = get_global_id(0), n = get_global_id(1);
  if (p >= count) return;
  LOCATE(settings);
  LOCATE(anchors);
  LOCATE(mask);
  LOCATE(x);
  LOCATE(truth);
  LOCATE(counts);
  LOCATE(bad);
  LOCATE(slots);
  LOCATE(step);
  LOCATE(delta);
  LOCATE(losses);
  const int cells = width * height, a = p / cells, cell = p % cells, column = cell % width, row = cell / width;
  const ulong place = (ulong)(a * (CLASSES + CHANNELS)) * cells + cell;
  x += n * x_stride + place;
  delta += n * delta_stride + place;
  truth += n * truth_stride;
  slots += n * slots_stride;
  const int boxes = counts[n * counts_stride];
  const float2 anchor = vload2(mask[a], anchors);
  const float4 raw = (float4)(x[0], x[cells], x[2 * cells], x[3 * cells]), box = predicted_box(raw, anchor, column, row, width, height);
  const float objectness = sigmoid(x[4 * cells]), object_slope = objectness * (1 - objectness);
  float best = 0;
  for (int t = 0; t < boxes; t++) best = fmax(best, centred_overlap(box, TRUTH(t)));
  float object = best > THRESH ? 0 : FORM == YOLOV3 ? objectness : NOOBJECT_SCALE * objectness * object_slope;
  float4 location = 0;
  if (WARM > 0 && step[STEP_ITERATION] < (uint)WARM) location = squared_difference(FORM, raw, (float4)(0.5f, 0.5f, 0, 0), WARM_SCALE);
  for (int c = 0; c < CLASSES; c++) delta[(CHANNELS + c) * cells] = 0;
  float missed = 0; /* sum of 1 - overlap */
  int matches = 0;
  for (int t = 0; t < boxes; t++) {
    if (slots[t] != p) continue;
    const float4 own = TRUTH(t);
    if (FORM == YOLOV3 && IOU_LOSS != MSE) {
      missed += 1 - overlap_loss(box, own, exp(raw.hi), IOU_LOSS == GIOU, &location);
      location *= -IOU_SCALE;
    } else {
      const bool weighs = FORM == YOLOV3 || (FORM == REGION && !RESCORES);
      const float4 target = (float4)(own.x * width - column, own.y * height - row, log(own.hi / anchor));
      location = squared_difference(FORM, raw, target, COORD_SCALE * (weighs ? 2 - own.z * own.w : 1));
    }
    const float missing = 1 - objectness;
    if (FORM == YOLOV3) object = -missing * (LOGIC_GRADIENT ? OBJECT_SCALE : 1);
    else if (FORM == YOLO9000) object = -OBJECT_SCALE * 2 * missing * missing * missing * object_slope;
    else object = OBJECT_SCALE * (objectness - (RESCORES ? centred_overlap(box, own) : 1)) * object_slope;
    class_difference(settings, x + CHANNELS * cells, delta + CHANNELS * cells, cells, (int)clamp(truth[BOX * t], 0.0f, CLASSES - 1.0f), matches == 0);
    matches++;
  }
  delta[0] = location.x;
  delta[cells] = location.y;
  delta[2 * cells] = location.z;
  delta[3 * cells] = location.w;
  delta[4 * cells] = object;
  float loss = object * object + (FORM == YOLOV3 && IOU_LOSS != MSE ? IOU_SCALE * missed : dot(location, location));
  if (matches > 0)
    for (int c = 0; c < CLASSES; c++) loss += delta[(CHANNELS + c) * cells] * delta[(CHANNELS + c) * cells];
  losses[n * losses_stride + p] = bad[n * bad_stride] ? NAN : loss;
}

/* dx: the differences times the loss weight and `factor`. */
kernel void gradients(OPERAND(const float, settings), OPERAND(const float, x), OPERAND(const float, delta), OPERAND(const float, weight),
                      OPERAND(float, dx), const int count, const int cells, const float factor, const int accumulate) {
  const int i = get_global_id(0), n = get_global_id(1);
  if (i >= count) return;
  LOCATE(settings);
  LOCATE(x);
  LOCATE(delta);
  LOCATE(weight);
  LOCATE(dx);
  float gradient = delta[n * delta_stride + i] * (weight[0] * factor);
  if (LOGIC_GRADIENT) {
    const int channel = i / cells % (CLASSES + CHANNELS);
    const float p = sigmoid(x[n * x_stride + i]);
    if (channel != 2 && channel != 3) gradient *= p * (1 - p);
  }
  dx += n * dx_stride;
  dx[i] = gradient + (accumulate ? dx[i] : 0);
}
