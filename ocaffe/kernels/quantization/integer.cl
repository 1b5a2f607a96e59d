/* Products of integers, as a chip computes them: y = (sum over k of v[k] w[k] + b) s in one group, with an exact sum.
 *
 *   product   v: columns (samples, groups * depth, pixels) of whole numbers as floats, w: (outputs, depth) on a grid, scales: of its rows.
 *
 * The weight is round(w / scale). The bias b is round(bias / s), where s = input_scale * scale is the scale of the output. `rounded` corrects the quotient
 * by its remainder, which fma computes exactly, so that devices whose division is not exact give the same integer.
 *
 * Work-items: (pixels, outputs, samples).
 */
#include "common.h"

#define MOST_BIAS 0x1p30f /* chips add biases of 32 bits */

INLINE int rounded(const float x, const float scale) {
  if (!(scale > 0)) return 0;
  const float near = clamp(rint(x / scale), -MOST_BIAS, MOST_BIAS), rest = fma(-near, scale, x);
  return fabs(near) < MOST_BIAS ? (int)near + (int)rint(rest / scale) : (int)near;
}

kernel void product(OPERAND(const float, v), OPERAND(const float, w), OPERAND(const float, scales),
#ifdef BIAS
                    OPERAND(const float, bias),
#endif
                    OPERAND(float, y), const int pixels, const int outputs, const int depth, const int group_outputs, const int scale_step,
                    const float input_scale) {
  LOCATE(v);
  LOCATE(w);
  LOCATE(scales);
  LOCATE(y);
#ifdef BIAS
  LOCATE(bias);
#endif
  const int pixel = get_global_id(0), output = get_global_id(1), sample = get_global_id(2);
  if (pixel >= pixels || output >= outputs) return;
  global const float* column = v + sample * v_stride + (ulong)(output / group_outputs) * depth * pixels + pixel;
  global const float* row = w + (ulong)output * depth;
  const float scale = scales[output * scale_step];
  int sum = 0;
  if (scale > 0)
    for (int k = 0; k < depth; k++) sum += (int)column[(ulong)k * pixels] * (int)rint(row[k] / scale);
  const float s = input_scale * scale;
#ifdef BIAS
  sum += rounded(bias[output], s);
  if (!(s > 0)) {
    y[sample * y_stride + (ulong)output * pixels + pixel] = bias[output];
    return;
  }
#endif
  y[sample * y_stride + (ulong)output * pixels + pixel] = (float)sum * s;
}
