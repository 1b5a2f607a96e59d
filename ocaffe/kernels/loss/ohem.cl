/* Online hard example mining (R-FCN). No defines.
 *
 * Work-items: losses: one for each position; annotate: one for each region.
 */
#include "softmax.h"

/* The loss -log(prob[label]) of each position (see softmax.h); 0 for an ignored label, NaN for a label outside of the classes. */
kernel void ENTRY(losses)(OPERAND(const float, prob), OPERAND(const float, label), OPERAND(float, loss), const int count, const int classes,
                   const int inner, const int mid, const int label_run, const int has_ignore, const int ignore) {
  LOCATE(prob);
  LOCATE(label);
  LOCATE(loss);
  const int p = get_global_id(0);
  if (p >= count) return;
  const float own = label[label_at(p, label_run, label_stride)];
  const float result = outside(own, classes) ? NAN : -log_of(SCORES(prob, p)[(int)own * STEP(prob)]);
  loss[label_at(p, label_run, loss_stride)] = has_ignore && (int)own == ignore ? 0 : result;
}

/* A region whose corners are swapped is padding. */
#define IS_PADDING(i) (rois[(i) * rois_stride + 3] < rois[(i) * rois_stride + 1])

/* Labels and weights of the regions whose loss is among the `most` largest of their image (ties: the first); the others get `ignore` and 0. */
kernel void ENTRY(annotate)(OPERAND(const float, rois), OPERAND(const float, first), OPERAND(const float, second), OPERAND(const float, labels),
                     OPERAND(const float, weights), OPERAND(float, kept), OPERAND(float, kept_weights), const int count, const int channels,
                     const int most, const float ignore) {
  LOCATE(rois);
  LOCATE(first);
  LOCATE(second);
  LOCATE(labels);
  LOCATE(weights);
  LOCATE(kept);
  LOCATE(kept_weights);
  const int i = get_global_id(0);
  if (i >= count) return;
  const int image = (int)rois[i * rois_stride];
  const float own = first[i * first_stride] + second[i * second_stride];
  int before = 0;
  for (int j = 0; j < count; j++) {
    const float other = first[j * first_stride] + second[j * second_stride];
    before += (int)rois[j * rois_stride] == image && !IS_PADDING(j) && (other > own || (other == own && j < i));
  }
  const bool chosen = before < most && !IS_PADDING(i);
  kept[i * kept_stride] = chosen ? labels[i * labels_stride] : ignore;
  for (int c = 0; c < channels; c++) kept_weights[i * kept_weights_stride + c] = chosen ? weights[i * weights_stride + c] : 0;
}
