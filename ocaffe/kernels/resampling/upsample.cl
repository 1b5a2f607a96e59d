/* Upsampling: nearest pixels (YOLO's Upsample), and unpooling, which writes each value to the position in a mask (SegNet's).
 *
 * Define: SCALE, the factor of the nearest pixels (vectors for the usual 2). A plane of x has `inputs` elements, one of y `outputs`. A mask holds
 * positions in the plane of y, -1 for none. A mask value that is not a position makes the last element of its plane NaN, and the gradient of
 * the element itself too.
 *
 * nearest_*, unpool_take, unpool_backward: work-items (pieces of `piece` elements of a sample of the result, samples).
 * unpool_plane: (planes of a sample, samples); of several inputs with one position the last wins, since they are processed in order.
 * unpool_claim, unpool_take: the same for GPUs, on y filled with -1 before. The owner of a position is the last input that names it (a maximum of
 * integers does not depend on timing); unpool_take then writes its value. unpool_claim: (inputs of a sample, samples).
 */
#include "common.h"

#ifndef SCALE
#define SCALE 2
#endif
#define NOWHERE INT_MAX /* owner of the last element of a plane with an invalid mask value */

#define PIECE(count) const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count);

/* Rows have W elements in x, W * SCALE in y; row r of all planes of y is row r / SCALE of all planes of x. */
kernel void ENTRY(nearest_forward)(OPERAND(const float, x), OPERAND(float, y), const int count, const int piece, const int W) {
  LOCATE(x);
  LOCATE(y);
  PIECE(count)
  x += n * x_stride;
  y += n * y_stride;
  for (int i = first; i < last;) {
    const int row = i / (W * SCALE), from = i - row * W * SCALE, steps = min(last - i, W * SCALE - from);
    global const float* in = x + (ulong)(row / SCALE) * W;
    int j = 0;
#if SCALE == 2
    if (from % 2 == 0)
      for (; j + 16 <= steps; j += 16) vstore16(vload8(0, in + (from + j) / 2).s0011223344556677, 0, y + i + j);
#endif
    for (; j < steps; j++) y[i + j] = in[(uint)(from + j) / SCALE];
    i += steps;
  }
}

kernel void ENTRY(nearest_backward)(OPERAND(const float, dy), OPERAND(float, dx), const int count, const int piece, const int W, const int accumulate) {
  LOCATE(dy);
  LOCATE(dx);
  PIECE(count)
  dy += n * dy_stride;
  dx += n * dx_stride;
  for (int i = first; i < last;) {
    const int row = i / W, from = i - row * W, steps = min(last - i, W - from);
    global const float* in = dy + ((ulong)row * W * SCALE + from) * SCALE;
    int j = 0;
#if SCALE == 2
    for (; j + 8 <= steps; j += 8) {
      const float16 upper = vload16(0, in + j * 2), lower = vload16(0, in + (W + j) * 2);
      float8 sums = upper.even + upper.odd + lower.even + lower.odd;
      if (accumulate) sums += vload8(0, dx + i + j);
      vstore8(sums, 0, dx + i + j);
    }
#endif
    for (; j < steps; j++) {
      float sum = 0;
      for (int a = 0; a < SCALE; a++)
        for (int b = 0; b < SCALE; b++) sum += in[(a * W + j) * SCALE + b];
      dx[i + j] = accumulate ? dx[i + j] + sum : sum;
    }
    i += steps;
  }
}

/* Return the position that a mask value names; NOWHERE if it is invalid, -1 for none. */
static int OWN(place_of)(const float mask, const int outputs) { return mask == -1 ? -1 : mask > -1 && mask < outputs ? (int)mask : NOWHERE; }

kernel void ENTRY(unpool_plane)(OPERAND(const float, x), OPERAND(const float, mask), OPERAND(float, y), const int planes, const int inputs,
                         const int outputs) {
  LOCATE(x);
  LOCATE(mask);
  LOCATE(y);
  const int plane = get_global_id(0), n = get_global_id(1);
  if (plane >= planes) return;
  x += n * x_stride + (ulong)plane * inputs;
  mask += n * mask_stride + (ulong)plane * inputs;
  y += n * y_stride + (ulong)plane * outputs;
  int o = 0, lost = 0;
  for (; o + 16 <= outputs; o += 16) vstore16((float16)(0), 0, y + o);
  for (; o < outputs; o++) y[o] = 0;
  for (int i = 0; i < inputs; i++) {
    const int at = place_of(mask[i], outputs);
    if (at == NOWHERE) lost = 1;
    else if (at >= 0) y[at] = x[i];
  }
  if (lost) y[outputs - 1] = NAN;
}

/* y is an array of integers until unpool_take. */
kernel void ENTRY(unpool_claim)(OPERAND(const float, mask), OPERAND(int, y), const int count, const int inputs, const int outputs) {
  LOCATE(mask);
  LOCATE(y);
  const int i = get_global_id(0), n = get_global_id(1);
  if (i >= count) return;
  const int plane = i / inputs, at = place_of(mask[n * mask_stride + i], outputs);
  y += n * y_stride + (ulong)plane * outputs;
  if (at == NOWHERE) atomic_max((volatile global int*)y + outputs - 1, NOWHERE);
  else if (at >= 0) atomic_max((volatile global int*)y + at, i - plane * inputs);
}

kernel void ENTRY(unpool_clear)(OPERAND(int, y), const int count, const int piece) {
  LOCATE(y);
  PIECE(count)
  for (int i = first; i < last; i++) y[n * y_stride + i] = -1;
}

kernel void ENTRY(unpool_take)(OPERAND(const float, x), OPERAND(int, y), const int count, const int piece, const int inputs, const int outputs) {
  LOCATE(x);
  LOCATE(y);
  PIECE(count)
  x += n * x_stride;
  y += n * y_stride;
  for (int i = first; i < last; i++) {
    const int owner = y[i];
    const float value = owner < 0 ? 0 : owner == NOWHERE ? NAN : x[(ulong)(i / outputs) * inputs + owner];
    y[i] = as_int(value);
  }
}

kernel void ENTRY(unpool_backward)(OPERAND(const float, dy), OPERAND(const float, mask), OPERAND(float, dx), const int count, const int piece,
                            const int inputs, const int outputs, const int accumulate) {
  LOCATE(dy);
  LOCATE(mask);
  LOCATE(dx);
  PIECE(count)
  dy += n * dy_stride;
  mask += n * mask_stride;
  dx += n * dx_stride;
  for (int i = first; i < last; i++) {
    const int at = place_of(mask[i], outputs);
    const float value = at < 0 ? 0 : at == NOWHERE ? NAN : dy[(ulong)(i / inputs) * outputs + at];
    dx[i] = accumulate ? dx[i] + value : value;
  }
}
