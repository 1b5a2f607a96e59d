/* Direct convolution for CPU runtimes whose result has its channels in blocks of V (docs/kernels.md, Channels in blocks on CPUs). Nothing is
   unrolled: a tile of MR neighbouring pixels is multiplied by the filters of NR outputs, in the order in which both are in memory.

     pack      packed = [group][panel of NR outputs][block of CB channels][KH][KW][CB][NR], zero past the last channel and output
     forward   y = filters times windows of x (+ bias) (+ y), then the activation

   V, NV, MR         the register tile, see tile_blocked_cpu.h; MR <= OW
   CB                channels per block of x: V, or 1 for an image without blocks
   KH, KW, SH, SW, DH, DW   window, stride, dilation
   PADDED            1: the lines of x that some lines of y need are first copied to `space` with their padding

   Tiles are numbered through the lines of y, then through the batch. The last tile of a line begins MR pixels before its end and writes the
   pixels that are missing. A work-item computes `share` tiles x `block` outputs, `near` tiles at a time. With PADDED, `share` and `near` are
   whole lines. Third dimension: the group. pack: work-items (panel, block of channels, group). */
#include "common.h"
#include "tile_blocked_cpu.h"

#ifndef CB
#define CB V
#endif
#ifndef KH
#define KH 1
#endif
#ifndef KW
#define KW 1
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
#ifndef PADDED
#define PADDED 0
#endif

/* The elements of x that a line of the window reads are contiguous unless it is dilated: RUNS runs of RUN elements. */
#if DW == 1
#define RUNS 1
#define RUN (KW * CB)
#else
#define RUNS KW
#define RUN CB
#endif

/* A 1x1 tile reads one or two lines of each block of channels. Processors do not prefetch so many places at a time: 144 channels took twice the time. */
#define NEXT_LINE (SW * CB > LINE_FLOATS ? SW * CB : LINE_FLOATS)

SINGLE void ENTRY(pack)(OPERAND_RESTRICT(const float, w), OPERAND_RESTRICT(float, packed), int channels, int outputs) {
  LOCATE(w); LOCATE(packed);
  const int o = get_global_id(0) * NR, c = get_global_id(1) * CB, valid = min(NR, outputs - o);
  const ulong depth = (ulong)channels * KH * KW;
  w += ((ulong)get_global_id(2) * outputs + o) * depth + (ulong)c * KH * KW;
  packed += (((ulong)get_global_id(2) * get_global_size(0) + get_global_id(0)) * get_global_size(1) + get_global_id(1)) * (CB * KH * KW * NR);
  for (int t = 0; t < KH * KW; t++)
    for (int k = 0; k < CB; k++, packed += NR)
      ROLLED for (int j = 0; j < NR; j++) packed[j] = j < valid && c + k < channels ? w[j * depth + k * (KH * KW) + t] : 0.0f;
}

/* to = lines [first, last) of a channel block, from `from`, with padding: `wide` pixels each. */
INLINE void OWN(pad)(global const float* from, global float* to, int first, int last, int H, int W, int ph, int pw, int wide) {
  const int left = min(wide, pw) * CB, end = min(wide, pw + W) * CB, all = wide * CB;
  for (int r = first - ph; r < last - ph; r++, to += all) {
    const int inside = r >= 0 && r < H;
    int i = 0;
    if (inside) {
      global const float* line = from + (long)r * W * CB - left;
      ROLLED for (; i < left; i++) to[i] = 0.0f;
      ROLLED for (; i + V <= end; i += V) GLOBAL(to + i) = GLOBAL(line + i);
      ROLLED for (; i < end; i++) to[i] = line[i];
    }
    ROLLED for (; i < all; i++) to[i] = 0.0f;
  }
}

SINGLE void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y),
#if PADDED
                    OPERAND_RESTRICT(float, space),
#endif
                    int batch, int channels, int outputs, int H, int W, int OH, int OW, int ph, int pw, int share, int near, int block, int has_bias,
                    int accumulate, ACTIVATION) {
  LOCATE(x); LOCATE(packed); LOCATE(bias); LOCATE(y);
  const int g = get_global_id(2), o0 = get_global_id(1) * block, o1 = min(outputs, o0 + block), blocks = channels / CB;
  const int across = (OW + MR - 1) / MR, tiles = OH * across, end = min(batch * tiles, ((int)get_global_id(0) + 1) * share);
  const ulong depth = (ulong)channels * KH * KW;
  x += (ulong)g * channels * H * W;
  y += (ulong)g * outputs * OH * OW;
  packed += (ulong)g * ((outputs + NR - 1) / NR * NR) * depth;
  bias += g * outputs;
#if PADDED
  LOCATE(space);
  space += (((ulong)g * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0)) * space_stride;
#endif
  float offsets[NR] __attribute__((aligned(64))), factors[NR] __attribute__((aligned(64)));
  for (int t = get_global_id(0) * share, t1; t < end; t += t1 - t % tiles) {
    const int n = t / tiles, t0 = t % tiles;
    t1 = min(min(t0 + near, tiles), t0 + end - t);
    global const float* from = x + n * x_stride;
#if PADDED
    const int top = t0 / across * SH, bottom = (t1 - 1) / across * SH + (KH - 1) * DH + 1, wide = (OW - 1) * SW + (KW - 1) * DW + 1;
    const int pitch = wide * CB;
    const ulong plane = (ulong)(bottom - top) * pitch;
    for (int c = 0; c < blocks; c++) pad(from + (ulong)c * H * W * CB, space + c * plane, top, bottom, H, W, ph, pw, wide);
    from = space;
#else
    const int top = 0, pitch = W * CB;
    const ulong plane = (ulong)H * pitch;
#endif
    for (int o = o0; o < o1; o += NR) {
      epilogue_of(offsets, factors, NR, o, outputs, bias, bias_stride, has_bias);
      global const float* ahead = packed + (o + NR) * depth; /* the filters of the next outputs, perhaps in the next work-item of the core */
      const int lines = o + NR < outputs ? EXPECTED_LINES(depth * NR, (t1 - t0) * blocks * KH * RUNS) : 0;
      for (int u = t0; u < t1; u++) {
        const int row = u / across, column = u % across * MR, first = min(column, OW - MR);
        global const float* base = from + (ulong)(row * SH - top) * pitch + first * SW * CB;
        global const float* b = packed + o * depth;
        vec acc[MR][NV];
        CLEAR(acc);
        ROLLED for (int c = 0; c < blocks; c++, base += plane)
          ROLLED for (int h = 0; h < KH; h++)
            ROLLED for (int r = 0; r < RUNS; r++) {
              global const float* a = base + h * DH * pitch + r * DW * CB;
#if KH * KW == 1 && CB == V
#pragma unroll
              for (int i = MR * SW * CB; i < 2 * MR * SW * CB; i += NEXT_LINE) PREFETCH(a + i, 3); /* the pixels of the next tile */
#endif
              ADD_PRODUCTS(acc, a, SW * CB, b, RUN);
              EXPECT(ahead, lines);
            }
#pragma unroll
        for (int j = 0; j < NV; j++) {
          if (o + j * V >= outputs) break;
          const vec factor = PRIVATE(factors + j * V), offset = PRIVATE(offsets + j * V);
          global float* to = y + n * y_stride + ((ulong)(o / V + j) * OH * OW + row * OW + first) * V;
#pragma unroll
          for (int i = 0; i < MR; i++)
            if (first + i >= column) FINISH_VECTOR(to + i * V, acc[i][j]);
        }
      }
    }
  }
}
