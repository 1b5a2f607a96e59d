/* AlignedBoxLoss: the assignment of priors to true boxes, the loss and its gradients (ocaffe/kernels/detection/aligned.py). No defines.
 *
 * There are N images, P priors, and G true boxes `truth` (G x 8: image, label, instance, xmin, ymin, xmax, ymax, difficult). `settings` holds the
 * parameters that do not depend on shapes, see below. `lists` (N x G) and `numbers` (N) are the true boxes of each image (true_boxes.cl).
 *   metrics (G x P)   the alignment of the prediction of a prior with a true box; 0: it is no candidate
 *   order (G x K), counts (G)   the candidates of a true box with the largest alignments, by descending alignment (nms.cl)
 *   matches (N x P)   the true box of each prior, or -1
 *   targets (N x P)   the target of the score for the class of that true box, 0 without one
 *
 * Work-items: metrics: (priors, true boxes). match, targets, losses, loc_backward, conf_backward: (priors, images). scales: true boxes. total: one.
 */
#include "boxes.h"

/* The order of Settings in ocaffe/kernels/detection/aligned.py. */
#define CLASSES ((int)settings[0])
#define BACKGROUND ((int)settings[1])
#define CODE ((int)settings[2])
#define SCORE_POWER settings[3]
#define OVERLAP_POWER settings[4]
#define GAMMA settings[5]
#define LOC_WEIGHT settings[6]

#define LEAST 1e-30f /* alignments below this count as none, because their quotients are not exact */

#define TRUTH(g) (truth + (g) * 8)
#define LABEL(g) ((int)TRUTH(g)[1])
#define TRUE_BOX(g) vload4(0, TRUTH(g) + 3)
#define IS_CLASS(label) ((label) >= 0 && (label) < CLASSES && (label) != BACKGROUND)

float sigmoid(const float x) { return 1 / (1 + exp(-x)); }

/* Return the box that prior p predicts. */
float4 predicted(global const float* settings, global const float* loc, global const float* priors, const int P, const int p) {
  return box_decode(vload4(p, priors), vload4(P + p, priors), vload4(p, loc), CODE);
}

/* A prior is a candidate if its centre is in the true box. A side of the true box that is shorter than the prior's counts as long as that. */
kernel void metrics(OPERAND(const float, settings), OPERAND(const float, truth), OPERAND(const float, loc), OPERAND(const float, conf),
                    OPERAND(const float, priors), OPERAND(float, metrics), const int P, const int images) {
  LOCATE(settings);
  LOCATE(truth);
  LOCATE(loc);
  LOCATE(conf);
  LOCATE(priors);
  LOCATE(metrics);
  const int p = get_global_id(0), g = get_global_id(1), n = (int)TRUTH(g)[0], label = LABEL(g);
  if (p >= P) return;
  float metric = 0;
  if (n >= 0 && n < images && IS_CLASS(label)) {
    const float4 prior = vload4(p, priors), box = TRUE_BOX(g);
    const float2 way = fabs(prior.lo + prior.hi - box.lo - box.hi), reach = fmax(prior.hi - prior.lo, box.hi - box.lo);
    if (way.x < reach.x && way.y < reach.y) {
      const float overlap = box_overlap(predicted(settings, loc + n * loc_stride, priors, P, p), box, 0);
      const float score = sigmoid(conf[n * conf_stride + p * CLASSES + label]);
      metric = overlap > 0 ? pow(score, SCORE_POWER) * pow(overlap, OVERLAP_POWER) : 0;
    }
  }
  metrics[(long)g * P + p] = metric > LEAST ? metric : 0;
}

/* A prior that several true boxes have chosen belongs to the one that its prediction overlaps most; of equal ones to the first. */
kernel void match(OPERAND(const float, settings), OPERAND(const float, truth), OPERAND(const float, loc), OPERAND(const float, priors),
                  OPERAND(const float, metrics), OPERAND(const int, order), OPERAND(const int, counts), OPERAND(const int, lists),
                  OPERAND(const int, numbers), OPERAND(int, matches), const int P, const int most) {
  LOCATE(settings);
  LOCATE(truth);
  LOCATE(loc);
  LOCATE(priors);
  LOCATE(metrics);
  LOCATE(order);
  LOCATE(counts);
  LOCATE(lists);
  LOCATE(numbers);
  LOCATE(matches);
  const int p = get_global_id(0), n = get_global_id(1);
  if (p >= P) return;
  const float4 box = predicted(settings, loc + n * loc_stride, priors, P, p);
  const int count = numbers[n * numbers_stride];
  float largest = -1;
  int match = -1;
  for (int k = 0; k < count; k++) {
    const int g = lists[n * lists_stride + k], chosen = counts[g];
    const float metric = metrics[(long)g * P + p];
    if (chosen == 0 || metric == 0) continue;
    const int last = order[g * most + chosen - 1];
    const float least = metrics[(long)g * P + last];
    if (metric < least || (metric == least && p > last)) continue;
    const float overlap = box_overlap(box, TRUE_BOX(g), 0);
    if (overlap > largest) {
      largest = overlap;
      match = g;
    }
  }
  matches[n * matches_stride + p] = match;
}

/* scales (G x 2): the largest alignment and the largest overlap of the priors of each true box. */
kernel void scales(OPERAND(const float, settings), OPERAND(const float, truth), OPERAND(const float, loc), OPERAND(const float, priors),
                   OPERAND(const float, metrics), OPERAND(const int, order), OPERAND(const int, counts), OPERAND(const int, matches),
                   OPERAND(float, scales), const int G, const int P, const int most) {
  LOCATE(settings);
  LOCATE(truth);
  LOCATE(loc);
  LOCATE(priors);
  LOCATE(metrics);
  LOCATE(order);
  LOCATE(counts);
  LOCATE(matches);
  LOCATE(scales);
  const int g = get_global_id(0);
  if (g >= G) return;
  const int n = (int)TRUTH(g)[0], count = counts[g]; /* 0 for boxes of no image */
  float2 largest = 0;
  for (int k = 0; k < count; k++) {
    const int p = order[g * most + k];
    if (matches[n * matches_stride + p] != g) continue;
    const float overlap = box_overlap(predicted(settings, loc + n * loc_stride, priors, P, p), TRUE_BOX(g), 0);
    largest = fmax(largest, (float2)(metrics[(long)g * P + p], overlap));
  }
  vstore2(largest, g, scales);
}

kernel void targets(OPERAND(const float, metrics), OPERAND(const int, matches), OPERAND(const float, scales), OPERAND(float, targets), const int P) {
  LOCATE(metrics);
  LOCATE(matches);
  LOCATE(scales);
  LOCATE(targets);
  const int p = get_global_id(0), n = get_global_id(1);
  if (p >= P) return;
  const int g = matches[n * matches_stride + p];
  targets[n * targets_stride + p] = g < 0 ? 0 : metrics[(long)g * P + p] / scales[2 * g] * scales[2 * g + 1];
}

/* Return the cross-entropy of the sigmoid of x, times the difference to the target to the power of gamma. */
float class_loss(const float x, const float target, const float gamma) {
  const float each = log1p(exp(-fabs(x))) + fmax(x, 0) - x * target;
  return gamma == 0 ? each : pow(fabs(target - sigmoid(x)), gamma) * each;
}

float class_gradient(const float x, const float target, const float gamma) {
  const float score = sigmoid(x), way = score - target, size = fabs(way);
  if (gamma == 0) return way;
  if (size == 0) return 0;
  const float each = log1p(exp(-fabs(x))) + fmax(x, 0) - x * target;
  return pow(size, gamma) * way + gamma * pow(size, gamma - 1) * sign(way) * score * (1 - score) * each;
}

#define BENDING (4 / (M_PI_F * M_PI_F)) /* of the difference of two angles */

/* Return 1 - CIoU of two boxes that overlap; gradient: of the sides of the first one. The weight of the aspect counts as a constant. */
float box_loss(const float4 box, const float4 truth, float4* gradient) {
  const float2 sides = box.hi - box.lo, wanted = truth.hi - truth.lo, shared = fmin(box.hi, truth.hi) - fmax(box.lo, truth.lo);
  const float2 whole = fmax(box.hi, truth.hi) - fmin(box.lo, truth.lo), way = (box.lo + box.hi - truth.lo - truth.hi) / 2;
  const float both = shared.x * shared.y, all = sides.x * sides.y + wanted.x * wanted.y - both, overlap = both / all;
  const float far = dot(whole, whole), distance = dot(way, way);
  const float turn = atan(wanted.x / wanted.y) - atan(sides.x / sides.y), aspect = BENDING * turn * turn;
  const float weight = aspect > 0 ? aspect / (1 - overlap + aspect) : 0;
  /* The moving sides are those of the first box. */
  const float2 low_inside = select((float2)(0), (float2)(-1), box.lo > truth.lo), high_inside = select((float2)(0), (float2)(1), box.hi < truth.hi);
  const float2 low_outside = select((float2)(0), (float2)(-1), box.lo < truth.lo), high_outside = select((float2)(0), (float2)(1), box.hi > truth.hi);
  const float4 dboth = (float4)(low_inside, high_inside) * shared.yxyx, darea = (float4)(-sides.yx, sides.yx), dall = darea - dboth;
  const float4 dfar = 2 * (float4)(low_outside, high_outside) * whole.xyxy;
  const float2 daspect = 2 * BENDING * turn * (float2)(-sides.y, sides.x) / dot(sides, sides);
  *gradient = -(dboth * all - both * dall) / (all * all) + way.xyxy / far - distance * dfar / (far * far) + weight * (float4)(-daspect, daspect);
  return 1 - overlap + distance / far + weight * aspect;
}

/* losses (3 x N x P): of the classes, of the boxes, and the targets. */
kernel void losses(OPERAND(const float, settings), OPERAND(const float, truth), OPERAND(const float, loc), OPERAND(const float, conf),
                   OPERAND(const float, priors), OPERAND(const int, matches), OPERAND(const float, targets), OPERAND(float, losses), const int P,
                   const int images) {
  LOCATE(settings);
  LOCATE(truth);
  LOCATE(loc);
  LOCATE(conf);
  LOCATE(priors);
  LOCATE(matches);
  LOCATE(targets);
  LOCATE(losses);
  const int p = get_global_id(0), n = get_global_id(1);
  if (p >= P) return;
  const int match = matches[n * matches_stride + p], label = match < 0 ? -1 : LABEL(match), all = images * P;
  const float target = targets[n * targets_stride + p];
  conf += n * conf_stride + p * CLASSES;
  losses += n * P + p;
  float sum = 0;
  for (int c = 0; c < CLASSES; c++)
    if (c != BACKGROUND) sum += class_loss(conf[c], c == label ? target : 0, GAMMA);
  float4 gradient;
  losses[0] = sum;
  losses[all] = match < 0 ? 0 : target * box_loss(predicted(settings, loc + n * loc_stride, priors, P, p), TRUE_BOX(match), &gradient);
  losses[2 * all] = target;
}

/* Write the loss and its divisor. */
kernel void total(OPERAND(const float, settings), OPERAND(const float, sums), OPERAND(const int, bad), OPERAND(float, loss),
                  OPERAND(float, normalizer), const int images) {
  LOCATE(settings);
  LOCATE(sums);
  LOCATE(bad);
  LOCATE(loss);
  LOCATE(normalizer);
  int wrong = 0;
  for (int n = 0; n < images; n++) wrong += bad[n * bad_stride];
  const float divisor = fmax(sums[2], 1.0f);
  normalizer[0] = divisor;
  loss[0] = wrong > 0 ? NAN : (sums[0] + LOC_WEIGHT * sums[1]) / divisor;
}

/* `weight`: the loss weight. */
kernel void loc_backward(OPERAND(const float, settings), OPERAND(const float, truth), OPERAND(const float, loc), OPERAND(const float, priors),
                         OPERAND(const int, matches), OPERAND(const float, targets), OPERAND(const float, normalizer),
                         OPERAND(const float, weight), OPERAND(float, dloc), const int P, const int accumulate) {
  LOCATE(settings);
  LOCATE(truth);
  LOCATE(loc);
  LOCATE(priors);
  LOCATE(matches);
  LOCATE(targets);
  LOCATE(normalizer);
  LOCATE(weight);
  LOCATE(dloc);
  const int p = get_global_id(0), n = get_global_id(1);
  if (p >= P) return;
  const int match = matches[n * matches_stride + p];
  float4 gradient = 0;
  if (match >= 0) {
    const float4 prior = vload4(p, priors), variance = vload4(P + p, priors), box = predicted(settings, loc + n * loc_stride, priors, P, p);
    const float4 sides = (float4)(prior.hi - prior.lo, prior.hi - prior.lo);
    float4 own;
    box_loss(box, TRUE_BOX(match), &own);
    gradient = own * variance;
    if (CODE == CORNER_SIZE) gradient *= sides;
    if (CODE == CENTER_SIZE) gradient = variance * (float4)((own.lo + own.hi) * sides.lo, (own.hi - own.lo) * (box.hi - box.lo) / 2);
    gradient *= LOC_WEIGHT * targets[n * targets_stride + p] * weight[0] / normalizer[0];
  }
  dloc += n * dloc_stride;
  if (accumulate) gradient += vload4(p, dloc);
  vstore4(gradient, p, dloc);
}

kernel void conf_backward(OPERAND(const float, settings), OPERAND(const float, truth), OPERAND(const float, conf), OPERAND(const int, matches),
                          OPERAND(const float, targets), OPERAND(const float, normalizer), OPERAND(const float, weight), OPERAND(float, dconf),
                          const int P, const int accumulate) {
  LOCATE(settings);
  LOCATE(truth);
  LOCATE(conf);
  LOCATE(matches);
  LOCATE(targets);
  LOCATE(normalizer);
  LOCATE(weight);
  LOCATE(dconf);
  const int p = get_global_id(0), n = get_global_id(1);
  if (p >= P) return;
  const int match = matches[n * matches_stride + p], label = match < 0 ? -1 : LABEL(match);
  const float target = targets[n * targets_stride + p], factor = weight[0] / normalizer[0];
  conf += n * conf_stride + p * CLASSES;
  dconf += n * dconf_stride + p * CLASSES;
  for (int c = 0; c < CLASSES; c++) {
    const float gradient = c == BACKGROUND ? 0 : class_gradient(conf[c], c == label ? target : 0, GAMMA) * factor;
    dconf[c] = gradient + (accumulate ? dconf[c] : 0);
  }
}
