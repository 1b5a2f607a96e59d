/* ProposalTarget: a sample of the proposals and of the true boxes, with their training targets for a detector.
 *
 * STEP_*  words of the step buffer (ocaffe/ir/recorder.py)
 *
 * Candidates are the regions (image, x1, y1, x2, y2), then the true boxes (x1, y1, x2, y2, label) of the first image. Regions of the image -1 and true
 * boxes with a negative label are padding.
 *
 * Work-items: match, rank: one for each candidate. sampled: (classes, rows).
 */
#include "anchors.h"

#define CANDIDATE(i) vload4(0, (i) < regions ? rois + (i) * rois_stride + 1 : truth + ((i) - regions) * truth_stride)
#define IS_PADDING(i) (((i) < regions ? rois[(i) * rois_stride] : truth[((i) - regions) * truth_stride + 4]) < 0)

/* kinds: 1 foreground, 0 background, -1 neither or padding; matches: the true box with the largest overlap. */
kernel void ENTRY(match)(OPERAND(const float, rois), OPERAND(const float, truth), OPERAND(const uint, step), OPERAND(int, kinds), OPERAND(int, matches),
                  OPERAND(uint, tickets), const int regions, const int truths, const float foreground, const float low, const float high,
                  const uint key0, const uint key1) {
  LOCATE(rois);
  LOCATE(truth);
  LOCATE(step);
  LOCATE(kinds);
  LOCATE(matches);
  LOCATE(tickets);
  const int i = get_global_id(0);
  if (i >= regions + truths) return;
  const float4 box = CANDIDATE(i);
  float largest = 0;
  int at = 0;
  for (int g = 0; g < truths; g++) {
    if (IS_PADDING(regions + g)) continue;
    const float value = overlap(box, vload4(0, truth + g * truth_stride));
    if (value > largest) {
      largest = value;
      at = g;
    }
  }
  kinds[i] = IS_PADDING(i) ? -1 : truths > 0 && largest >= foreground ? 1 : largest >= low && largest < high ? 0 : -1;
  matches[i] = at;
  tickets[i] = ticket(i, step, (uint2)(key0, key1));
}

/* sources: the candidates of the sample, foreground first, in the order of their tickets; extent: how many; positives: how many are foreground. */
kernel void ENTRY(rank)(OPERAND(const int, kinds), OPERAND(const uint, tickets), OPERAND(int, sources), OPERAND(int, extent), OPERAND(int, positives),
                 const int count, const int most_positives, const int most) {
  LOCATE(kinds);
  LOCATE(tickets);
  LOCATE(sources);
  LOCATE(extent);
  LOCATE(positives);
  const int i = get_global_id(0);
  if (i >= count) return;
  const int kind = kinds[i];
  const uint own = tickets[i];
  int foreground = 0, background = 0, before = 0;
  for (int j = 0; j < count; j++) {
    foreground += kinds[j] == 1;
    background += kinds[j] == 0;
    before += kinds[j] == kind && (tickets[j] < own || (tickets[j] == own && j < i));
  }
  foreground = min(foreground, most_positives);
  background = min(background, most - foreground);
  if (kind == 1 && before < foreground) sources[before] = i;
  if (kind == 0 && before < background) sources[foreground + before] = i;
  if (i == 0) {
    extent[0] = foreground + background;
    positives[0] = foreground;
  }
}

/* Write a row of the tops. Rows from `extent` on are padding: an inverted box of the background. Targets are in the four columns of the label (of class 1, if `agnostic`). normal: the numbers to subtract from targets,
 * the numbers to divide them by, and their weights. */
kernel void ENTRY(sampled)(OPERAND(const float, rois), OPERAND(const float, truth), OPERAND(const int, matches), OPERAND(const int, sources),
                    OPERAND(const int, positives), OPERAND(const int, extent), OPERAND(const float, normal), OPERAND(float, chosen), OPERAND(float, labels),
                    OPERAND(float, targets), OPERAND(float, inside), OPERAND(float, outside), const int rows, const int classes, const int regions,
                    const int agnostic) {
  LOCATE(rois);
  LOCATE(truth);
  LOCATE(matches);
  LOCATE(sources);
  LOCATE(positives);
  LOCATE(extent);
  LOCATE(normal);
  LOCATE(chosen);
  LOCATE(labels);
  LOCATE(targets);
  LOCATE(inside);
  LOCATE(outside);
  const int c = get_global_id(0), row = get_global_id(1);
  if (c >= classes) return;
  const bool found = row < extent[0], positive = row < positives[0];
  const int i = found ? sources[row] : 0;
  float4 box = (float4)(0, 0, -1, -1);
  if (found) box = CANDIDATE(i);
  const float label = positive ? truth[matches[i] * truth_stride + 4] : 0;
  if (c == 0) {
    chosen += row * chosen_stride;
    chosen[0] = found && i < regions ? rois[i * rois_stride] : 0;
    vstore4(box, 0, chosen + 1);
    labels[row * labels_stride] = label;
  }
  const bool own = label > 0 && c == (agnostic ? 1 : (int)label);
  const float4 weight = own ? vload4(2, normal) : (float4)(0);
  float4 target = 0;
  if (own) target = (encode(box, vload4(0, truth + matches[i] * truth_stride)) - vload4(0, normal)) / vload4(1, normal);
  vstore4(target, c, targets + row * targets_stride);
  vstore4(weight, c, inside + row * inside_stride);
  vstore4(select((float4)(0), (float4)(1), weight > 0), c, outside + row * outside_stride);
}
