/* Direct depthwise convolution for CPU runtimes: output o depends only on channel o / multiplier.
   Filters are [outputs][KERNEL_H][KERNEL_W].

   forward          y[n][o] = x[n][o / multiplier] * w[o] (+ bias[o], or factor and offset), then the fused activation (epilogue.h)
   backward_data    dx[n][c] = sum over the outputs of channel c, as a gather (+ bias[c]: a deconvolution), then the activation
   backward_filter  dw[o] = sum over samples and positions of dy * x, of one slice of `part` samples, at dw + slice * dw_stride;
                    split_sum adds the slices (split_sum.h)

   Defines: per axis H, W the window: KERNEL_ (taps), STRIDE_, PAD_, DILATION_ (pixels); VECTOR: floats of a vector, 8 or 16; OUTPUTS: maximum
   number of outputs of a work-item of backward_filter.
   One work-item per `each` planes of the result (channels, sample), in blocks of ROWS x COLUMNS; backward_filter: (`each` outputs, slice). */
#include "common.h"
#include "epilogue.h"
#include "split_sum.h"

#include "plane_window.h"
#ifndef VECTOR
#define VECTOR 8
#endif
#ifndef OUTPUTS
#define OUTPUTS 8
#endif

#define TAPS (KERNEL_H * KERNEL_W)
#define FEW (TAPS <= 81) /* taps that are unrolled and kept in registers; with more taps the program has only backward_data */
#if FEW
#define UNROLLED _Pragma("unroll")
#define WEIGHT(t) tap[t]
#else
#define UNROLLED _Pragma("unroll 1")
#define WEIGHT(t) (weights[t] * factor)
#endif
#define SIZES int batch, int outputs, int multiplier, int h, int w, int oh, int ow

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
typedef JOIN(float, VECTOR) OWN(floatv);
#define LOADV JOIN(vload, VECTOR)
#define STOREV JOIN(vstore, VECTOR)
#define VECTORS(n) (((n) + VECTOR - 1) / VECTOR * VECTOR)
#define PRIVATE(name, size) float name[size] __attribute__((aligned(64)))

/* A block of the result. Its padded source is copied line by line, so that the inner loops handle neither edges nor strides. */
#define ROWS 8
#define COLUMNS 64

/* Copy the last n < VECTOR elements of a line, in halves. Scalar loops would take most of the time of a 7 x 7 plane. */
INLINE void OWN(copy_rest)(float* to, global const float* from, int n) {
#if VECTOR > 8
  if (n & 8) vstore8(vload8(0, from), 0, to), to += 8, from += 8;
#endif
  if (n & 4) vstore4(vload4(0, from), 0, to), to += 4, from += 4;
  if (n & 2) vstore2(vload2(0, from), 0, to), to += 2, from += 2;
  if (n & 1) *to = *from;
}

INLINE void OWN(store_rest)(global float* to, const float* from, int n) {
#if VECTOR > 8
  if (n & 8) vstore8(vload8(0, from), 0, to), to += 8, from += 8;
#endif
  if (n & 4) vstore4(vload4(0, from), 0, to), to += 4, from += 4;
  if (n & 2) vstore2(vload2(0, from), 0, to), to += 2, from += 2;
  if (n & 1) *to = *from;
}

/* Copy `across` elements (whole vectors) of a line of `width` from element `first` on; zeros outside of it, or if the line does not exist. */
INLINE void OWN(take_line)(float* to, global const float* line, int exists, int first, int across, int width) {
  const int begin = max(0, -first), end = exists ? min(across, width - first) : 0;
  for (int k = 0; k < across; k += VECTOR) STOREV((floatv)(0.0f), 0, to + k);
  int k = begin;
  for (; k + VECTOR <= end; k += VECTOR) STOREV(LOADV(0, line + first + k), 0, to + k);
  if (k < end) copy_rest(to + k, line + first + k, end - k);
}

/* Write n results of a line. */
INLINE void OWN(give_line)(global float* to, float* from, int n, int accumulate, ACTIVATION) {
  int k = 0;
  for (; k + VECTOR <= n; k += VECTOR) {
    floatv v = LOADV(0, from + k);
    if (accumulate) v += LOADV(0, to + k);
    ACTIVATE(floatv, v);
    STOREV(v, 0, to + k);
  }
  if (k == n) return;
  if (accumulate) {
    PRIVATE(before, VECTOR);
    STOREV((floatv)(0.0f), 0, before);
    copy_rest(before, to + k, n - k);
    STOREV(LOADV(0, from + k) + LOADV(0, before), 0, from + k);
  }
  floatv v = LOADV(0, from + k);
  ACTIVATE(floatv, v);
  STOREV(v, 0, from + k);
  store_rest(to + k, from + k, n - k);
}

/* forward and backward_filter read x with its columns sorted by their remainder modulo the stride. A tap is then a phase and a shift. */
#define X_SHIFT(j) ((j) * DILATION_W / STRIDE_W)
#define X_PHASE(j) ((j) * DILATION_W % STRIDE_W)
#define X_PITCH VECTORS(COLUMNS + X_SHIFT(KERNEL_W - 1))
#define X_LINE (STRIDE_W * X_PITCH)
#define X_LINES ((ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1)
#define X_TAP(row, i, j) (((row) * STRIDE_H + (i) * DILATION_H) * X_LINE + X_PHASE(j) * X_PITCH + X_SHIFT(j))

INLINE void OWN(take_x)(float* to, global const float* x, int h, int w, int y0, int x0, int rows, int columns) {
  const int lines = (rows - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1;
  const int across = VECTORS(VECTORS(columns) + X_SHIFT(KERNEL_W - 1));
  for (int i = 0; i < lines; ++i, to += X_LINE) {
    const int y = y0 * STRIDE_H - PAD_H + i, exists = (uint)y < (uint)h;
    global const float* line = x + (exists ? y * w : 0);
#if STRIDE_W == 1
    take_line(to, line, exists, x0 - PAD_W, across, w);
#else
    PRIVATE(mixed, X_LINE);
    take_line(mixed, line, exists, x0 * STRIDE_W - PAD_W, STRIDE_W * across, w);
#if STRIDE_W == 2
    for (int k = 0; k < across; k += VECTOR) {
      const floatv a = LOADV(0, mixed + 2 * k), b = LOADV(0, mixed + 2 * k + VECTOR);
      STOREV((floatv)(a.even, b.even), 0, to + k);
      STOREV((floatv)(a.odd, b.odd), 0, to + X_PITCH + k);
    }
#else
    for (int phase = 0; phase < STRIDE_W; ++phase)
      for (int k = 0; k < across; ++k) to[phase * X_PITCH + k] = mixed[k * STRIDE_W + phase];
#endif
#endif
  }
}

#if FEW
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, filter),
                                                                   OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(float, y), SIZES,
                                                                   int each, int has_bias, int accumulate, ACTIVATION) {
  const int sample = get_global_id(1);
  PRIVATE(block, X_LINES * X_LINE);
  PRIVATE(line, COLUMNS);
  LOCATE(x), LOCATE(filter), LOCATE(bias), LOCATE(y);
  x += sample * x_stride;
  y += sample * y_stride;
  const int first = get_global_id(0) * each, end = min(outputs, first + each);
  for (int output = first; output < end; ++output) {
    global const float* image = x + (ulong)(output / multiplier) * h * w;
    global float* result = y + (ulong)output * oh * ow;
    const floatv start = (floatv)(OFFSET(bias, output));
    const float factor = FACTOR(bias, output);
    floatv tap[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) tap[t] = (floatv)(filter[output * TAPS + t] * factor);
    for (int y0 = 0; y0 < oh; y0 += ROWS)
      for (int x0 = 0; x0 < ow; x0 += COLUMNS) {
        const int rows = min(ROWS, oh - y0), columns = min(COLUMNS, ow - x0);
        take_x(block, image, h, w, y0, x0, rows, columns);
        for (int r = 0; r < rows; ++r) {
          for (int v = 0; v < columns; v += VECTOR) {
            floatv sum = start;
#pragma unroll
            for (int t = 0; t < TAPS; ++t) sum += tap[t] * LOADV(0, block + X_TAP(r, t / KERNEL_W, t % KERNEL_W) + v);
            STOREV(sum, 0, line + v);
          }
          give_line(result + (y0 + r) * ow + x0, line, columns, accumulate, GIVEN_ACTIVATION);
        }
      }
  }
}

/* The outer loop goes over samples, the inner one over outputs, so that small planes are read in memory order. */
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void ENTRY(backward_filter)(OPERAND_RESTRICT(const float, x),
                                                                           OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, dw),
                                                                           SIZES, int each, int part, int accumulate) {
  const int first = get_global_id(0) * each, slice = get_global_id(1), mine = min(each, outputs - first);
  PRIVATE(block, X_LINES * X_LINE);
  PRIVATE(line, COLUMNS);
  PRIVATE(sums, OUTPUTS * TAPS * VECTOR);
  for (int t = 0; t < mine * TAPS; ++t) STOREV((floatv)(0.0f), t, sums);
  LOCATE(x), LOCATE(dy);
  for (int sample = slice * part; sample < min(batch, (slice + 1) * part); ++sample)
    for (int o = 0; o < mine; ++o) {
      global const float* image = x + sample * x_stride + (ulong)((first + o) / multiplier) * h * w;
      global const float* given = dy + sample * dy_stride + (ulong)(first + o) * oh * ow;
      floatv sum[TAPS];
#pragma unroll
      for (int t = 0; t < TAPS; ++t) sum[t] = LOADV(o * TAPS + t, sums);
      for (int y0 = 0; y0 < oh; y0 += ROWS)
        for (int x0 = 0; x0 < ow; x0 += COLUMNS) {
          const int rows = min(ROWS, oh - y0), columns = min(COLUMNS, ow - x0);
          take_x(block, image, h, w, y0, x0, rows, columns);
          for (int r = 0; r < rows; ++r) {
            take_line(line, given + (y0 + r) * ow + x0, 1, 0, VECTORS(columns), columns);
            for (int v = 0; v < columns; v += VECTOR) {
              const floatv d = LOADV(0, line + v);
#pragma unroll
              for (int t = 0; t < TAPS; ++t) sum[t] += d * LOADV(0, block + X_TAP(r, t / KERNEL_W, t % KERNEL_W) + v);
            }
          }
        }
#pragma unroll
      for (int t = 0; t < TAPS; ++t) STOREV(sum[t], o * TAPS + t, sums);
    }
  dw += dw_offset + slice * dw_stride + first * TAPS;
  for (int t = 0; t < mine * TAPS; ++t) {
    float all = 0.0f;
    for (int k = 0; k < VECTOR; ++k) all += sums[t * VECTOR + k];
    dw[t] = accumulate ? dw[t] + all : all;
  }
}
#endif

/* backward_data writes dx in phases: pixel p, p + pad = stride * q + phase, receives dy at q - shift from the taps of its phase. */
#define DY_SHIFT_H(i) ((i) * DILATION_H / STRIDE_H)
#define DY_SHIFT_W(j) ((j) * DILATION_W / STRIDE_W)
#define DY_LINES (ROWS + DY_SHIFT_H(KERNEL_H - 1))
#define DY_LINE VECTORS(COLUMNS + DY_SHIFT_W(KERNEL_W - 1))
#define DY_TAP(row, i, j) (((row) + DY_SHIFT_H(KERNEL_H - 1) - DY_SHIFT_H(i)) * DY_LINE + DY_SHIFT_W(KERNEL_W - 1) - DY_SHIFT_W(j))

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void ENTRY(backward_data)(OPERAND_RESTRICT(const float, dy),
                                                                         OPERAND_RESTRICT(const float, filter),
                                                                         OPERAND_RESTRICT(const float, bias),
                                                                         OPERAND_RESTRICT(float, dx), SIZES, int each, int has_bias,
                                                                         int accumulate, ACTIVATION) {
  const int sample = get_global_id(1), channels = outputs / multiplier;
  PRIVATE(block, DY_LINES * DY_LINE);
  PRIVATE(line, STRIDE_W * COLUMNS + VECTOR);  /* give_line begins at `skip` and reads a whole last vector */
  LOCATE(dy), LOCATE(filter), LOCATE(bias), LOCATE(dx);
  dy += sample * dy_stride;
  dx += sample * dx_stride;
  const int q_end_h = (h - 1 + PAD_H) / STRIDE_H + 1, q_end_w = (w - 1 + PAD_W) / STRIDE_W + 1;
  const int first = get_global_id(0) * each, end = min(channels, first + each);
  for (int output = first * multiplier; output < end * multiplier; ++output) {
    global const float* image = dy + (ulong)output * oh * ow;
    global float* result = dx + (ulong)(output / multiplier) * h * w;
    const int before = output % multiplier, add = accumulate || before > 0;  /* the other outputs of a channel add to the first one's result */
    const floatv start = (floatv)(before == 0 ? OFFSET(bias, output / multiplier) : 0.0f);
    const float factor = FACTOR(bias, output / multiplier);
    global const float* weights = filter + output * TAPS;
#if FEW
    floatv tap[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) tap[t] = (floatv)(weights[t] * factor);
#endif
    for (int q_h = PAD_H / STRIDE_H; q_h < q_end_h; q_h += ROWS)
      for (int q_w = PAD_W / STRIDE_W; q_w < q_end_w; q_w += COLUMNS) {
        const int rows = min(ROWS, q_end_h - q_h), columns = min(COLUMNS, q_end_w - q_w);
        const int across = VECTORS(VECTORS(columns) + DY_SHIFT_W(KERNEL_W - 1));
        for (int i = 0; i < rows + DY_SHIFT_H(KERNEL_H - 1); ++i) {
          const int y = q_h - DY_SHIFT_H(KERNEL_H - 1) + i, exists = (uint)y < (uint)oh;
          take_line(block + i * DY_LINE, image + (exists ? y * ow : 0), exists, q_w - DY_SHIFT_W(KERNEL_W - 1), across, ow);
        }
        const int p_w = q_w * STRIDE_W - PAD_W, skip = max(0, -p_w);
        for (int r = 0; r < rows; ++r)
          UNROLLED for (int phase_h = 0; phase_h < STRIDE_H; ++phase_h) {
            const int p_h = (q_h + r) * STRIDE_H + phase_h - PAD_H;
            if ((uint)p_h >= (uint)h) continue;
            for (int v = 0; v < columns; v += VECTOR) {
              floatv sum[STRIDE_W];
              UNROLLED for (int phase = 0; phase < STRIDE_W; ++phase) sum[phase] = start;
              UNROLLED for (int i = 0; i < KERNEL_H; ++i)
                if (i * DILATION_H % STRIDE_H == phase_h)
                  UNROLLED for (int j = 0; j < KERNEL_W; ++j)
                    sum[j * DILATION_W % STRIDE_W] += WEIGHT(i * KERNEL_W + j) * LOADV(0, block + DY_TAP(r, i, j) + v);
#if STRIDE_W == 1
              STOREV(sum[0], 0, line + v);
#elif STRIDE_W == 2
              floatv low, high;
              low.even = sum[0].lo, low.odd = sum[1].lo, high.even = sum[0].hi, high.odd = sum[1].hi;
              STOREV(low, 0, line + 2 * v);
              STOREV(high, 0, line + 2 * v + VECTOR);
#else
              UNROLLED for (int phase = 0; phase < STRIDE_W; ++phase) {
                PRIVATE(lanes, VECTOR);
                STOREV(sum[phase], 0, lanes);
                for (int k = 0; k < VECTOR; ++k) line[(v + k) * STRIDE_W + phase] = lanes[k];
              }
#endif
            }
            give_line(result + p_h * w + p_w + skip, line + skip, min(columns * STRIDE_W, w - p_w) - skip, add,
                      ACTIVATION_IF(before + 1 == multiplier));
          }
      }
  }
}
