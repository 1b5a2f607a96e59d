/* Convolution with a 1 x 1 window and stride 1 for CPU runtimes: matrix products that read the images in long runs, in their own layout. Many
   short runs would wait for memory. Columns q = (sample, pixel) are numbered through the whole batch, so that small images also fill the
   vectors.

     forward           y[o][q]  = sum over c of w[o][c] x[c][q]     backward_data is the same with the filters transposed
     backward_filter   w[o][c]  = sum over q of y[o][q] x[c][q]

   V, NV, MR, KC    the register tile, see tile_cpu.h; product_parts_cpu.cl packs the filters
   WIDE             panels of NR columns that a work-item of forward copies from KC channels of x at a time (or more panels from fewer
                    channels): together they stay in the second-level cache
   ROWS, LINE       channels and pixels that backward_filter transposes at a time

   IMAGES: batch; channels, outputs of one group; P pixels. Work-items: see each kernel. Third dimension: the group. */
#include "common.h"
#include "tile_cpu.h"

#ifndef WIDE
#define WIDE 2
#endif
#ifndef ROWS
#define ROWS 128
#endif
#ifndef LINE
#define LINE 400
#endif

#define IMAGES int batch, int channels, int outputs, int P

#define LINE_FLOATS 16 /* floats of a cache line */

/* to[k * row + j] = from[k * P + j] for k < depth, j < count. Writes up to V - 1 more floats in each row. `readable` floats may be read. */
INLINE void OWN(take)(global const float* from, ulong readable, float* to, int row, int depth, int count, int P) {
  const int beyond = readable < (ulong)(depth - 1) * P + (count + V - 1) / V * V ? V / P + 1 : 0;    /* rows whose last vector would read beyond that */
  int k = 0;
  for (; k < depth - beyond; k++, from += P, to += row)
    ROLLED for (int j = 0; j < count; j += V) PRIVATE(to + j) = GLOBAL(from + j);
  for (; k < depth; k++, from += P, to += row) fetch(from, to, count);
}

/* y = w x (+ bias) (+ y); with has_bias 2 the product is multiplied by a factor per output (epilogue.h). `wide` columns of `deep` channels are
   copied at a time. `near` of these columns are multiplied by all outputs before the next ones. Meanwhile the next block is prefetched.
   Work-item: `share` times `wide` columns x `block` outputs. */
SINGLE void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), IMAGES, int deep, int wide, int near, int share, int block, int has_bias, int accumulate, ACTIVATION) {
  LOCATE(x); LOCATE(packed); LOCATE(bias); LOCATE(y);
  const int g = get_global_id(2), first = get_global_id(1) * block, last = min(outputs, first + block);
  const int row = wide + V; /* with room for a whole last vector */
  const int begin = get_global_id(0) * share * wide, all = min(batch * P, begin + share * wide);
  const ulong group = (ulong)g * channels * P, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * channels * P;
  float buf[KC * (WIDE * NR + V)] __attribute__((aligned(64)));
  float tile[MR * NR] __attribute__((aligned(64)));
  x += group;
  packed += (ulong)g * ((outputs + MR - 1) / MR * MR) * channels;
  bias += g * outputs;
  y += (ulong)g * outputs * P;
  for (int q = begin, k0 = 0; q < all;) {
    const int depth = min(deep, channels - k0), columns = min(wide, all - q), n0 = q / P, p0 = q % P;
    const int add = accumulate || k0 > 0, done = k0 + depth == channels;
    for (int j = 0, n = n0, p = p0, length; j < columns; j += length, n++, p = 0) {
      length = min(columns - j, P - p);
      const ulong at = n * x_stride + (ulong)k0 * P + p;
      take(x + at, readable - at, buf + j, row, depth, length, P);
    }
    if (columns % NR)
      for (int k = 0; k < depth; k++)
        for (int j = columns; j % NR; j++) buf[k * row + j] = 0.0f;
    const int next_q = done ? q + wide : q, next_k = done ? 0 : k0 + depth;
    global const float* next = x + (next_q / P) * x_stride + (ulong)next_k * P + next_q % P;
    const int lines = next_q < all ? (min(min(wide, all - next_q), P - next_q % P) + LINE_FLOATS - 1) / LINE_FLOATS : 0; /* of one row, in one image */
    const int tiles = (columns + NR - 1) / NR * ((last - first + MR - 1) / MR), halvings = tiles >= 4 * lines ? 2 : tiles >= 2 * lines ? 1 : 0;
    int turn = 0; /* each turn prefetches one cache line of all rows, or of a half or a quarter of them, because memory is slower than a tile */
    for (int near0 = 0; near0 < columns; near0 += near)
      for (int o = first; o < last; o += MR) {
        global const float* a = packed + (ulong)o * channels + (ulong)k0 * MR;
        for (int j0 = near0; j0 < min(columns, near0 + near); j0 += NR) {
          vec acc[MR][NV];
          if (turn < lines << halvings) {
            const int row0 = (turn & ((1 << halvings) - 1)) * (depth >> halvings);
            global const float* line = next + (turn++ >> halvings) * LINE_FLOATS + (ulong)row0 * P;
            MULTIPLY_WHILE(PRIVATE, acc, a[k * MR + i], buf + j0, row, depth, AHEAD(line + (k >> halvings) * P));
          } else {
            MULTIPLY(acc, a[k * MR + i], buf + j0, row, depth);
          }
          spill(acc, tile);
          finish_columns(tile, y + (ulong)o * P, y_stride, P, q + j0, min(MR, last - o), min(NR, columns - j0), bias + o, bias_stride, has_bias, k0 == 0, add,
                         ACTIVATION_IF(done));
        }
      }
    q = next_q;
    k0 = next_k;
  }
  STREAM_FENCE;
}

/* dw = dy x^T. Work-item: `cb` channels x a slice of `share` samples; each slice has its own dw, unless there is only one. The channels' rows
   are transposed for LINE pixels at a time and multiplied by all outputs. */
SINGLE void ENTRY(backward_filter)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, dw), IMAGES, int cb, int share,
                            int accumulate) {
  LOCATE(x); LOCATE(dy); LOCATE(dw);
  const int g = get_global_id(2), c0 = get_global_id(0) * cb, rows = min(channels - c0, cb);
  const int n0 = get_global_id(1) * share, n1 = min(batch, n0 + share);
  const ulong group = ((ulong)g * channels + c0) * P, readable = (batch - 1) * x_stride + ((get_global_size(2) - g) * channels - c0) * P;
  float turned[(ROWS + NR) * (LINE + V)] __attribute__((aligned(64)));    /* [panel of NR rows][pixel, with room for V more][row] */
  float left[MR * LINE] __attribute__((aligned(64)));     /* [output][pixel] */
  float tile[MR * NR] __attribute__((aligned(64)));
  x += group;
  dy += (ulong)g * outputs * P;
  dw += get_global_id(1) * dw_stride + (ulong)g * outputs * channels + c0;
  for (int q = n0 * P; q < n1 * P; q += LINE) {
    const int count = min(LINE, n1 * P - q), add = accumulate || q > n0 * P, first = q / P, position = q % P;
    for (int j = 0, n = first, p = position, length; j < count; j += length, n++, p = 0) {
      length = min(count - j, P - p);
      for (int r = 0; r < (rows + NR - 1) / NR * NR; r += V)
        for (int t = 0; t < length; t += V) {
          vec block[V];
          const ulong at = n * x_stride + p + t;
          if (at + (ulong)min(r + V, rows) * P - P + V <= readable) {
#pragma unroll
            for (int i = 0; i < V; i++) block[i] = GLOBAL(x + at + (ulong)min(r + i, rows - 1) * P);
          } else {
            float lanes[V * V] __attribute__((aligned(64)));
            for (int i = 0; i < V; i++)
              for (int l = 0; l < V; l++) lanes[i * V + l] = t + l < length ? x[at + (ulong)min(r + i, rows - 1) * P + l] : 0.0f;
#pragma unroll
            for (int i = 0; i < V; i++) block[i] = PRIVATE(lanes + i * V);
          }
          transpose(block);
          float* to = turned + (r / NR * (LINE + V) + j + t) * NR + r % NR;
#pragma unroll
          for (int i = 0; i < V; i++) PRIVATE(to + i * NR) = block[i];
        }
    }
    for (int o = 0; o < outputs; o += MR) {
      for (int j = 0, n = first, p = position, length; j < count; j += length, n++, p = 0) {
        length = min(count - j, P - p);
        for (int i = 0; i < MR; i++) fetch(dy + n * dy_stride + (ulong)min(o + i, outputs - 1) * P + p, left + i * LINE + j, length);
      }
      for (int r = 0; r < rows; r += NR) {
        const float* right = turned + r * (LINE + V);
        vec acc[MR][NV];
        MULTIPLY(acc, left[i * LINE + k], right, NR, count);
        spill(acc, tile);
        finish_rows(tile, dw + (ulong)o * channels + r, channels, min(MR, outputs - o), min(NR, rows - r), NO_BIAS, add, NO_ACTIVATION);
      }
    }
  }
}
