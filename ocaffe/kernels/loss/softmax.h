/* Positions and labels of softmax.cl and softmax_cpu.cl.
 *
 * A blob is viewed as (outer, classes, inner); a position is one (outer, inner) with its `classes` scores. `mid` is outer / samples, the
 * number of elements between the batch axis and the axis of classes. If the axis of classes is the batch axis, mid is 0 and outer is 1.
 */
#ifndef OCAFFE_SOFTMAX_H
#define OCAFFE_SOFTMAX_H
#include "common.h"

/* Return the offset of the first score of position p. */
ulong OWN(scores_at)(const int p, const int classes, const int inner, const int mid, const ulong stride) {
  if (mid == 0) return p;
  const int outer = p / inner;
  return (outer / mid) * stride + (ulong)(outer % mid) * classes * inner + p % inner;
}

/* Return the offset of the label of position p. There is one label per position, `run` of them in a sample. */
ulong OWN(label_at)(const int p, const int run, const ulong stride) { return (p / run) * stride + p % run; }

bool OWN(outside)(const float label, const int classes) { return !(label > -1 && label < classes); }

#define SCORES(x, p) (x + scores_at(p, classes, inner, mid, x##_stride))
#define STEP(x) (mid == 0 ? x##_stride : (ulong)inner)

/* Return the divisor of a sum over positions: `fixed`, or if that is 0 the number of positions that counted. */
float OWN(divisor)(const float fixed, const float counted) { return fixed > 0 ? fixed : max(counted, 1.0f); }

/* Return log(p) with Caffe's floor. NaN stays NaN, so this does not use max(), which may drop it. */
float OWN(log_of)(const float p) { return log(p < FLT_MIN ? FLT_MIN : p); }
#endif
