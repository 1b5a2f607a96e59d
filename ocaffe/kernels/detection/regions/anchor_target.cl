/* AnchorTarget: the training targets of a region proposal network, for every anchor. Anchor number k = (a H + row) W + column, the order of the
 * top of labels.
 *
 * GROUP   work-items of the one group of `thin`, a power of two
 * STEP_*  words of the step buffer (ocaffe/ir/recorder.py)
 *
 * Work-items: overlaps: (anchors, true boxes); label, targets: anchors; thin: one group.
 */
#include "anchors.h"

#ifndef GROUP
#define GROUP 64
#endif

#define ANCHOR                                                                              \
  const int k = get_global_id(0);                                                           \
  if (k >= count) return;                                                                   \
  const float4 anchor = anchor_at(anchors, k / (H * W), k / W % H, k % W, stride);

/* info: height and width of the image */
bool is_inside(const float4 box, const float border, global const float* info) {
  return box.x >= -border && box.y >= -border && box.z < info[1] + border && box.w < info[0] + border;
}

/* overlaps (true boxes x anchors); -1 for anchors that are outside of the image, and for rows of padding, whose label is negative. */
kernel void overlaps(OPERAND(const float, anchors), OPERAND(const float, truth), OPERAND(const float, info), OPERAND(float, overlaps),
                     const int count, const int H, const int W, const float stride, const float border) {
  LOCATE(anchors);
  LOCATE(truth);
  LOCATE(info);
  LOCATE(overlaps);
  ANCHOR
  const int g = get_global_id(1);
  const bool counts = truth[g * truth_stride + 4] >= 0 && is_inside(anchor, border, info);
  overlaps[(long)g * count + k] = counts ? overlap(anchor, vload4(0, truth + g * truth_stride)) : -1;
}

/* labels: 1, 0 or -1 (does not count); matches: the true box with the largest overlap, -1 for none; best: the largest overlap of each true box. */
kernel void label(OPERAND(const float, anchors), OPERAND(const float, info), OPERAND(const float, overlaps), OPERAND(const float, best),
                  OPERAND(const uint, step), OPERAND(float, labels), OPERAND(int, matches), OPERAND(uint, tickets), const int count,
                  const int H, const int W, const float stride, const float border, const int truths, const float positive, const float negative,
                  const int negatives_win, const uint key0, const uint key1) {
  LOCATE(anchors);
  LOCATE(info);
  LOCATE(overlaps);
  LOCATE(best);
  LOCATE(step);
  LOCATE(labels);
  LOCATE(matches);
  LOCATE(tickets);
  ANCHOR
  float largest = 0, result = -1;
  int match = -1;
  if (is_inside(anchor, border, info)) {
    bool chosen = false; /* the anchor has the largest overlap of all with some true box */
    for (int g = 0; g < truths; g++) {
      const float value = overlaps[(long)g * count + k];
      if (value < 0) continue; /* padding */
      if (match < 0 || value > largest) {
        largest = value;
        match = g;
      }
      chosen |= value == best[g];
    }
    const bool is_positive = chosen || (match >= 0 && largest >= positive), is_negative = largest < negative;
    /* Floats, because Oclgrind 21.10 converts the sign-extended bit that LLVM makes of the integers 0 and -1 to 1. */
    result = is_positive && !(negatives_win && is_negative) ? 1.0f : is_negative ? 0.0f : -1.0f;
  }
  labels[k] = result;
  matches[k] = match;
  tickets[k] = ticket(k, step, (uint2)(key0, key1));
}

/* A ticket with the anchor's number appended: tickets of two anchors may be equal, these values are not. */
#define PLACED(k) ((ulong)tickets[k] << 24 | (k))

/* Keep the `quota` labels of value `which` with the smallest tickets and set the others to -1; return how many are left. `bins`: 256 integers.
 * The first one to drop is found digit by digit, from counts of each digit. */
int keep_some(global float* labels, global const uint* tickets, const int count, const float which, const int quota, local int* bins) {
  int rank = quota, all = 0;
  ulong first = 0;
  for (int shift = 48; shift >= 0; shift -= 8) {
    for (int i = get_local_id(0); i < 256; i += GROUP) bins[i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = get_local_id(0); k < count; k += GROUP)
      if (labels[k] == which && PLACED(k) >> shift >> 8 == first) atomic_inc(bins + (int)(PLACED(k) >> shift & 255));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (shift == 48) {
      for (int i = 0; i < 256; i++) all += bins[i];
      if (all <= quota) return all;
    }
    int digit = 0;
    while (rank >= bins[digit]) rank -= bins[digit++];
    first = first << 8 | digit;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int k = get_local_id(0); k < count; k += GROUP)
    if (labels[k] == which && PLACED(k) >= first) labels[k] = -1;
  return quota;
}

/* Keep at most `positives` positive labels and `all` labels; counts: how many positive and negative ones are left. */
kernel void thin(OPERAND(const uint, tickets), OPERAND(int, counts), OPERAND(float, labels), const int count, const int positives, const int all) {
  LOCATE(tickets);
  LOCATE(counts);
  LOCATE(labels);
  local int bins[256];
  const int kept = keep_some(labels, tickets, count, 1, positives, bins);
  barrier(CLK_LOCAL_MEM_FENCE);
  const int others = keep_some(labels, tickets, count, 0, max(all - kept, 0), bins);
  if (get_local_id(0) == 0) {
    counts[0] = kept;
    counts[1] = others;
  }
}

/* Targets and their weights (4 A x H x W), for all anchors inside the image. weight: the total weight of the positives; if negative, all labels
 * have equal weight. */
kernel void targets(OPERAND(const float, anchors), OPERAND(const float, truth), OPERAND(const int, matches), OPERAND(const float, labels),
                    OPERAND(const int, counts), OPERAND(float, targets), OPERAND(float, inside), OPERAND(float, outside), const int count,
                    const int H, const int W, const float stride, const float weight, const float inside0, const float inside1,
                    const float inside2, const float inside3) {
  LOCATE(anchors);
  LOCATE(truth);
  LOCATE(matches);
  LOCATE(labels);
  LOCATE(counts);
  LOCATE(targets);
  LOCATE(inside);
  LOCATE(outside);
  ANCHOR
  const int a = k / (H * W), at = a * 4 * H * W + k % (H * W);
  const float label = labels[k], all = counts[0] + counts[1];
  const float positive = weight < 0 ? 1 / all : weight / counts[0], negative = weight < 0 ? 1 / all : (1 - weight) / counts[1];
  const float own = label == 1 ? positive : label == 0 ? negative : 0;
  float4 target = 0;
  if (matches[k] >= 0) target = encode(anchor, vload4(0, truth + matches[k] * truth_stride));
  const float values[4] = {target.x, target.y, target.z, target.w}, factors[4] = {inside0, inside1, inside2, inside3};
  for (int i = 0; i < 4; i++) {
    targets[at + i * H * W] = values[i];
    inside[at + i * H * W] = label == 1 ? factors[i] : 0;
    outside[at + i * H * W] = own;
  }
}
