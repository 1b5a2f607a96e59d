/* Depthwise convolution for CPU runtimes on images whose channels are in blocks of V (docs/kernels.md, Channels in blocks on CPUs): the lanes of a vector
   are channels, so that each tap is one multiply-add for any stride.

     forward   y[c] = x[c] * w[c] (+ bias) (+ y), then the activation; packed = [block of channels][tap][V]

   V; KH, KW, SH, SW, DH, DW: window, stride, dilation. The padding is an argument.
   Work-items: (`rows` lines of y, block of channels, sample). */
#define NV 1
#define MR 1
#include "common.h"
#include "tile_blocked_cpu.h"

#ifndef KH
#define KH 3
#endif
#ifndef KW
#define KW 3
#endif
#ifndef SH
#define SH 1
#endif
#ifndef SW
#define SW 1
#endif
#ifndef DH
#define DH 1
#endif
#ifndef DW
#define DW 1
#endif

#define TOGETHER 4 /* pixels that share the loads of the filter */

/* The sum of one pixel, whose window may begin or end outside of the line. */
INLINE vec OWN(at_edge)(global const float* line, global const float* filter, int pitch, int left, int h0, int h1, int W) {
  vec sum = (vec)(0);
  ROLLED for (int h = h0; h < h1; h++)
    ROLLED for (int k = 0; k < KW; k++)
      if (left + k * DW >= 0 && left + k * DW < W) sum += GLOBAL(line + (long)h * DH * pitch + (left + k * DW) * V) * GLOBAL(filter + (h * KW + k) * V);
  return sum;
}

SINGLE void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), int H, int W, int OH, int OW, int ph, int pw, int rows, int has_bias, int accumulate, ACTIVATION) {
  LOCATE(x); LOCATE(packed); LOCATE(bias); LOCATE(y);
  const int c = get_global_id(1), channels = get_global_size(1) * V, pitch = W * V;
  const int first = get_global_id(0) * rows, end = min(OH, first + rows);
  const int begin = min(OW, (pw + SW - 1) / SW), inner = max(begin, min(OW, (W + pw - (KW - 1) * DW - 1) / SW + 1)); /* windows [begin, inner) are inside */
  float offsets[V] __attribute__((aligned(64))), factors[V] __attribute__((aligned(64)));
  epilogue_of(offsets, factors, V, c * V, channels, bias, bias_stride, has_bias);
  const vec offset = PRIVATE(offsets), factor = PRIVATE(factors);
  x += get_global_id(2) * x_stride + (ulong)c * H * pitch;
  y += get_global_id(2) * y_stride + (ulong)c * OH * OW * V;
  packed += c * (KH * KW * V);
  for (int row = first; row < end; row++) {
    const int top = row * SH - ph, h0 = max(0, (DH - 1 - top) / DH), h1 = min(KH, (H - top + DH - 1) / DH);
    global const float* line = x + (long)top * pitch;
    global float* to = y + (ulong)row * OW * V;
    int i = 0;
    ROLLED for (; i < begin; i++) FINISH_VECTOR(to + i * V, at_edge(line, packed, pitch, i * SW - pw, h0, h1, W));
    for (; i + TOGETHER <= inner; i += TOGETHER) {
      vec sums[TOGETHER];
#pragma unroll
      for (int j = 0; j < TOGETHER; j++) sums[j] = (vec)(0);
      ROLLED for (int h = h0; h < h1; h++) {
        global const float* from = line + (long)h * DH * pitch + (i * SW - pw) * V;
#pragma unroll
        for (int k = 0; k < KW; k++) {
          const vec filter = GLOBAL(packed + (h * KW + k) * V);
#pragma unroll
          for (int j = 0; j < TOGETHER; j++) sums[j] += GLOBAL(from + (j * SW + k * DW) * V) * filter;
        }
      }
#pragma unroll
      for (int j = 0; j < TOGETHER; j++) FINISH_VECTOR(to + (i + j) * V, sums[j]);
    }
    ROLLED for (; i < OW; i++) FINISH_VECTOR(to + i * V, at_edge(line, packed, pitch, i * SW - pw, h0, h1, W));
  }
}
