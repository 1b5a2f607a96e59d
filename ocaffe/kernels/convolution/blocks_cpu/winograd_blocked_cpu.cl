/* Convolution with 3 x 3 windows and stride 1 for CPU runtimes by Winograd's F(4x4, 3x3), see winograd_cpu.cl, on images whose channels are in
   blocks of V (docs/kernels.md, Channels in blocks on CPUs). The lanes of a vector are channels, so that no transform moves values between lanes.

     filter    U = [group][panel of NR outputs][36][channel][NR], zero past the last channel and output
     forward   y = A' (U times B' x B) A (+ bias) (+ y), then the activation

   V, NV, MR    the register tile, see tile_blocked_cpu.h: MR tiles of 4 x 4 pixels x NR outputs

   forward: `wide` tiles at a time, numbered through the batch. The workspace of a work-item has their transforms, [36][block of channels][tile][V],
   then the products of `chunk` outputs, [36][block of outputs][tile][V]. Work-items: forward (`share` tiles, `block` outputs, group); filter
   (channel, panel, group). */
#include "common.h"
#include "tile_blocked_cpu.h"
#include "winograd_cpu.h"

SINGLE void ENTRY(filter)(OPERAND_RESTRICT(const float, w), OPERAND_RESTRICT(float, packed), int channels, int outputs) {
  LOCATE(w); LOCATE(packed);
  const int c = get_global_id(0), panel = get_global_id(1), g = get_global_id(2);
  float taps[9][V] __attribute__((aligned(64)));
  w += ((ulong)g * outputs * channels + c) * 9;
  const ulong point = get_global_size(0) * NR;
  packed += ((ulong)g * get_global_size(1) + panel) * POINTS * point + c * NR;
  for (int j = 0; j < NR; j += V, packed += V) {
    ROLLED for (int l = 0; l < V; l++) {
      const int o = panel * NR + j + l, valid = o < outputs && c < channels;
#pragma unroll
      for (int t = 0; t < 9; t++) taps[t][l] = valid ? w[(ulong)o * channels * 9 + t] : 0.0f;
    }
    vec down[3][SIDE];
#pragma unroll
    for (int k = 0; k < 3; k++) {
      const vec column[3] = {PRIVATE(taps[k]), PRIVATE(taps[3 + k]), PRIVATE(taps[6 + k])};
      TRANSFORM_FILTER(down[k], column);
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
      const vec row[3] = {down[0][i], down[1][i], down[2][i]};
      vec u[SIDE];
      TRANSFORM_FILTER(u, row);
#pragma unroll
      for (int k = 0; k < SIDE; k++) GLOBAL(packed + (i * SIDE + k) * point) = u[k];
    }
  }
}

/* half_way = B' d, for the 6 x 6 pixels d from `from` on. */
#define DOWN(AT, from, row)                                                                          \
  _Pragma("unroll") for (int k = 0; k < SIDE; k++) {                                                 \
    vec d[SIDE], to[SIDE];                                                                           \
    _Pragma("unroll") for (int j = 0; j < SIDE; j++) d[j] = AT((from) + (long)j * (row) + k * V);    \
    TRANSFORM_INPUT(to, d);                                                                          \
    _Pragma("unroll") for (int j = 0; j < SIDE; j++) half_way[j][k] = to[j];                         \
  }

/* A tile: its sample, and the first row and column of its outputs. */
#define TILE(t) const int n = (t) / across / down, oy = (t) / across % down * OUT, ox = (t) % across * OUT

SINGLE void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), OPERAND_RESTRICT(float, space), int batch, int channels, int outputs, int H, int W, int OH, int OW,
                    int ph, int pw, int share, int wide, int block, int chunk, int has_bias, int accumulate, ACTIVATION) {
  LOCATE(x); LOCATE(packed); LOCATE(bias); LOCATE(y); LOCATE(space);
  const int g = get_global_id(2), o0 = get_global_id(1) * block, o1 = min(outputs, o0 + block), blocks = channels / V;
  const int across = (OW + OUT - 1) / OUT, down = (OH + OUT - 1) / OUT, tiles = batch * down * across;
  const ulong pitch = STEP(channels * wide), made = STEP(chunk * wide);
  float edge[POINTS * V] __attribute__((aligned(64))), offsets[V] __attribute__((aligned(64))), factors[V] __attribute__((aligned(64)));
  space += (((ulong)g * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0)) * space_stride;
  global float* products = space + POINTS * pitch;
  x += (ulong)g * channels * H * W;
  y += (ulong)g * outputs * OH * OW;
  bias += g * outputs;
  packed += (ulong)g * ((outputs + NR - 1) / NR * NR) * POINTS * channels;
  for (int t0 = get_global_id(0) * share, end = min(tiles, t0 + share); t0 < end; t0 += wide) {
    const int count = min(wide, end - t0), rows = max(count, MR), lines = EXPECTED_LINES(channels * NR, (rows + MR - 1) / MR * blocks);
    for (int i = 0; i < count; i++) {
      TILE(t0 + i);
      const int r = oy - ph, q = ox - pw, inside = r >= 0 && q >= 0 && r + SIDE <= H && q + SIDE <= W;
      global const float* from = x + n * x_stride + ((long)r * W + q) * V;
      global float* to = space + i * V;
      for (int c = 0; c < blocks; c++, from += (ulong)H * W * V, to += wide * V) {
        vec half_way[SIDE][SIDE];
        if (inside) {
          DOWN(GLOBAL, from, W * V)
        } else {
          ROLLED for (int j = 0; j < SIDE; j++)
            ROLLED for (int k = 0; k < SIDE; k++)
              PRIVATE(edge + (j * SIDE + k) * V) = r + j >= 0 && r + j < H && q + k >= 0 && q + k < W ? GLOBAL(from + ((long)j * W + k) * V) : (vec)(0);
          DOWN(PRIVATE, edge, SIDE * V)
        }
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
          vec u[SIDE];
          TRANSFORM_INPUT(u, half_way[j]);
#pragma unroll
          for (int k = 0; k < SIDE; k++) GLOBAL(to + (j * SIDE + k) * pitch) = u[k];
        }
      }
    }
    for (int first = o0; first < o1; first += chunk) {
      const int last = min(o1, first + chunk);
      for (int p = 0; p < POINTS; p++)
        for (int o = first; o < last; o += NR) {
          global const float* ahead = packed + ((ulong)o * POINTS + (p + 1) * NR) * channels; /* the filters that are likely to be next */
          for (int u = 0; u < rows; u += MR) { /* the last MR tiles overlap those before; with fewer than MR tiles, rows past them are not used */
            const int row = min(u, rows - MR);
            global const float* a = space + p * pitch + row * V;
            global const float* b = packed + ((ulong)o * POINTS + p * NR) * channels;
            global float* to = products + p * made + (ulong)(o - first) * wide + row * V;
            vec acc[MR][NV];
            CLEAR(acc);
            ROLLED for (int c = 0; c < blocks; c++, a += wide * V) {
              ADD_PRODUCTS(acc, a, V, b, V);
              EXPECT(ahead, lines);
            }
#pragma unroll
            for (int j = 0; j < NV; j++)
#pragma unroll
              for (int i = 0; i < MR; i++) GLOBAL(to + ((ulong)j * wide + i) * V) = acc[i][j];
          }
        }
      for (int o = first; o < last; o += V) {
        epilogue_of(offsets, factors, V, o, outputs, bias, bias_stride, has_bias);
        const vec offset = PRIVATE(offsets), factor = PRIVATE(factors);
        for (int i = 0; i < count; i++) {
          TILE(t0 + i);
          global const float* from = products + (ulong)(o - first) * wide + i * V;
          global float* to = y + n * y_stride + ((ulong)(o / V) * OH * OW + oy * OW + ox) * V;
          vec half_way[OUT][SIDE];
#pragma unroll
          for (int k = 0; k < SIDE; k++) {
            vec m[SIDE], s[OUT];
#pragma unroll
            for (int j = 0; j < SIDE; j++) m[j] = GLOBAL(from + (j * SIDE + k) * made);
            TRANSFORM_OUTPUT(s, m);
#pragma unroll
            for (int j = 0; j < OUT; j++) half_way[j][k] = s[j];
          }
#pragma unroll
          for (int j = 0; j < OUT; j++) {
            vec s[OUT];
            TRANSFORM_OUTPUT(s, half_way[j]);
            if (oy + j < OH)
#pragma unroll
              for (int k = 0; k < OUT; k++)
                if (ox + k < OW) FINISH_VECTOR(to + (j * OW + k) * V, s[k]);
          }
        }
      }
    }
  }
}
