/* Convolution for CPU runtimes by implicit GEMM in all three directions: the unrolled operand exists only tile by tile.

   Notation: a row k = (channel, tap) of the unrolled input belongs to one filter element; a column q = (sample, position) is one output
   pixel. Columns are numbered through the whole batch, so that small images also fill the vectors.

     forward           y[o][q]  = sum over k of w[o][k] x[k][q]     the columns of x are unrolled into private memory, KC rows at a time
     backward_data     x[k][q]  = sum over o of w[o][k] y[o][q]     each tile is added to dx at once, by the work-item that owns the channel
     backward_filter   w[o][k]  = sum over q of y[o][q] x[k][q]     unrolled as in forward, columns turned into rows

   V, NV, MR, KC                the register tile, see tile_cpu.h
   KD, KH, KW                   window (taps); SD, SH, SW stride; DD, DH, DW dilation: depth, height, width
   ROWS, LINE                   rows k and positions of unrolled input that backward_filter holds
   WIDE                         panels of NR columns that forward unrolls at a time: a panel of filters is fetched once for all of them

   GEOMETRY: batch; channels, outputs of one group; D, H, W and OD, OH, OW input and output size; pd, ph, pw padding.
   Work-items: see each kernel. Third dimension: the group. */
#include "common.h"
#include "tile_cpu.h"

#ifndef KD
#define KD 1
#endif
#ifndef KH
#define KH 3
#endif
#ifndef KW
#define KW 3
#endif
#ifndef SD
#define SD 1
#endif
#ifndef SH
#define SH 1
#endif
#ifndef SW
#define SW 1
#endif
#ifndef DD
#define DD 1
#endif
#ifndef DH
#define DH 1
#endif
#ifndef DW
#define DW 1
#endif
#ifndef ROWS
#define ROWS 128
#endif
#ifndef LINE
#define LINE 400
#endif
#ifndef WIDE
#define WIDE 2
#endif

#define TAPS (KD * KH * KW)
#define GEOMETRY int batch, int channels, int outputs, int D, int H, int W, int OD, int OH, int OW, int pd, int ph, int pw
#define PASS batch, channels, outputs, D, H, W, OD, OH, OW, pd, ph, pw

/* forward unrolls rows in blocks: all taps of some channels. If the window is longer than KC, a block is some lines of the window of one
   channel. */
#if TAPS <= KC
#define BLOCK_CHANNELS (KC / TAPS)
#define BLOCK_LINES (KD * KH)
#else
#define BLOCK_CHANNELS 1
#define BLOCK_LINES (KC / KW)
#endif

/* The length of a row of unrolled input in private memory: NR positions and room for a whole last vector. */
#define COLUMNS (NR + V)
#define WIDE_COLUMNS (WIDE * NR + V)

/* Up to V consecutive columns in one row of one image: `count` positions of sample n whose windows begin at pixel (z, y, x), which may be
   outside; `ox`, `oy`, `oz`: the first position. */
typedef struct { int n, oz, oy, ox, z, y, x, count; } OWN(Run);

inline Run OWN(run_from)(Run r, int limit, GEOMETRY) {
  r.z = r.oz * SD - pd;
  r.y = r.oy * SH - ph;
  r.x = r.ox * SW - pw;
  r.count = min(min(OW - r.ox, V), limit);
  return r;
}

inline Run OWN(run_at)(int q, int limit, GEOMETRY) {
  Run r;
  r.ox = q % OW;
  q /= OW;
  r.oy = q % OH;
  q /= OH;
  r.oz = q % OD;
  r.n = q / OD;
  return run_from(r, limit, PASS);
}

/* Return the run after r. */
inline Run OWN(run_next)(Run r, int limit, GEOMETRY) {
  r.ox += r.count;
  if (r.ox == OW) {
    r.ox = 0;
    if (++r.oy == OH) {
      r.oy = 0;
      if (++r.oz == OD) {
        r.oz = 0;
        r.n++;
      }
    }
  }
  return run_from(r, limit, PASS);
}

/* REACH: the pixels that V positions of a row extend over. ROW_LOAD, ROW_ADD: load them and add to them as vectors. For other strides the
   pixels are processed singly. */
#if SW == 1
#define REACH V
#define ROW_LOAD(p) GLOBAL(p)
#define ROW_ADD(p, v) GLOBAL(p) += v
#elif SW == 2
#define REACH (2 * V)
#define ROW_LOAD(p) (vec)(GLOBAL(p).even, GLOBAL((p) + V).even)
#define ROW_ADD(p, v)                                                  \
  do {                                                                 \
    vec low_ = (vec)(0), high_ = (vec)(0);                             \
    low_.even = v.lo;                                                  \
    high_.even = v.hi;                                                 \
    GLOBAL(p) += low_;                                                 \
    GLOBAL((p) + V) += high_;                                          \
  } while (0)
#elif SW == 4
#define REACH (4 * V)
#define EVERY_FOURTH(p) GLOBAL(p).even.even
#define ROW_LOAD(p) (vec)(EVERY_FOURTH(p), EVERY_FOURTH((p) + V), EVERY_FOURTH((p) + 2 * V), EVERY_FOURTH((p) + 3 * V))
#endif

/* Return -1 for lanes whose pixel is inside the image when lane 0 is at ix, 0 for the others. */
inline ivec OWN(on_image)(int ix, int W) { return PASTE(convert_uint, V)(LANES * SW + ix) < (uvec)(W); }

/* Unrolled input of channels [c0, c0 + cn), lines [l0, l0 + ln) of the window, columns [q, q + count): to[row * apart + j]. A row is
   (channel, line, tap of the line). Writes up to V - 1 floats beyond each row's end. `x` is the group's first channel in sample 0;
   `readable` floats may be read from there. */
inline void OWN(unroll)(global const float* x, ulong x_stride, ulong readable, float* to, const int apart, int q, int count, int c0, int cn, int l0, int ln, GEOMETRY) {
  const int plane = D * H * W, next = ln * KW * apart;
  Run r = run_at(q, count, PASS);
  for (int j = 0; j < count; j += r.count, r = run_next(r, count - j, PASS)) {
    const long sample = r.n * x_stride + (ulong)c0 * plane;
    for (int l = 0; l < ln; l++) {
      const int iz = r.z + (l0 + l) / KH * DD, iy = r.y + (l0 + l) % KH * DH;
      const long at = sample + (iz * H + iy) * W + r.x;
      float* row = to + l * KW * apart + j;
      if ((uint)iz >= (uint)D || (uint)iy >= (uint)H) {
        for (int c = 0; c < cn; c++, row += next)
          for (int k = 0; k < KW; k++) PRIVATE(row + k * apart) = (vec)(0);
        continue;
      }
      global const float* from = x + at;
#ifdef ROW_LOAD
      if (at >= 0 && at + (KW - 1) * DW + (long)(cn - 1) * plane + REACH <= (long)readable) {
#if SW == 1
        if (r.count <= HALF)
          for (int c = 0; c < cn; c++, row += next, from += plane)
            for (int k = 0; k < KW; k++)
              PRIVATE_HALF(row + k * apart) = on_image(r.x + k * DW, W).lo ? GLOBAL_HALF(from + k * DW) : (half_vec)(0);
        else
#endif
          for (int c = 0; c < cn; c++, row += next, from += plane)
            for (int k = 0; k < KW; k++) PRIVATE(row + k * apart) = on_image(r.x + k * DW, W) ? ROW_LOAD(from + k * DW) : (vec)(0);
        continue;
      }
#endif
      for (int c = 0; c < cn; c++, row += next, from += plane)
        for (int k = 0; k < KW; k++)
          for (int i = 0; i < r.count; i++) {
            const int p = k * DW + i * SW;
            row[k * apart + i] = (uint)(r.x + p) < (uint)W ? from[p] : 0.0f;
          }
    }
  }
}

/* to[t * SW] += from[t] for t < count where pixel ix + t * SW is in the row of W pixels. `at`: the index of to[0] in the memory that the
   work-item owns, `end`: the size of that memory. */
inline void OWN(add_run)(const float* from, global float* to, int count, int ix, int W, int at, int end) {
#ifdef ROW_ADD
  if (at >= 0 && at + REACH <= end) {
    const vec v = LANES < count && on_image(ix, W) ? PRIVATE(from) : (vec)(0);
    ROW_ADD(to, v);
    return;
  }
#endif
  for (int t = 0; t < count; t++)
    if ((uint)(ix + t * SW) < (uint)W) to[t * SW] += from[t];
}

/* y = w x (+ bias) (+ y); with has_bias 2 the product is multiplied by a factor per output (epilogue.h). Work-item: WIDE * NR columns x
   `block` outputs. */
SINGLE void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), GEOMETRY, int block, int has_bias, int accumulate, ACTIVATION) {
  LOCATE(x); LOCATE(packed); LOCATE(bias); LOCATE(y);
  const int g = get_global_id(2), first = get_global_id(1) * block, last = min(outputs, first + block);
  const int P = OD * OH * OW, depth = channels * TAPS, plane = D * H * W;
  const int q = get_global_id(0) * (WIDE * NR), columns = min(WIDE * NR, batch * P - q);
  const ulong group = (ulong)g * channels * plane, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * channels * plane;
  float buf[KC * WIDE_COLUMNS + V] __attribute__((aligned(64)));
  float tile[MR * NR] __attribute__((aligned(64)));
  packed += (ulong)g * ((outputs + MR - 1) / MR * MR) * depth;
  bias += g * outputs;
  y += (ulong)g * outputs * P;
  for (int c0 = 0; c0 < channels; c0 += BLOCK_CHANNELS) {
    for (int l0 = 0; l0 < KD * KH; l0 += BLOCK_LINES) {
      const int cn = min(channels - c0, BLOCK_CHANNELS), ln = min(KD * KH - l0, BLOCK_LINES);
      const int k0 = c0 * TAPS + l0 * KW, kn = cn * ln * KW, add = accumulate || k0 > 0;
      const int done = k0 + kn == depth;
      unroll(x + group, x_stride, readable, buf, WIDE_COLUMNS, q, columns, c0, cn, l0, ln, PASS);
      if (columns % NR)
        for (int k = 0; k < kn; k++)
          for (int j = columns; j % NR; j++) buf[k * WIDE_COLUMNS + j] = 0.0f;
      for (int o = first; o < last; o += MR) {
        global const float* a = packed + (ulong)o * depth + (ulong)k0 * MR;
        for (int j0 = 0; j0 < columns; j0 += NR) {
          vec acc[MR][NV];
          MULTIPLY(acc, a[k * MR + i], buf + j0, WIDE_COLUMNS, kn);
          spill(acc, tile);
          finish_columns(tile, y + (ulong)o * P, y_stride, P, q + j0, min(MR, last - o), min(NR, columns - j0), bias + o, bias_stride, has_bias, k0 == 0, add,
                         ACTIVATION_IF(done));
        }
      }
    }
  }
}

/* dx = w^T dy (+ bias), unrolled tile by tile and added up in place. Work-item: `share` samples x `block` channels. No other work-item writes them. */
SINGLE void ENTRY(backward_data)(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                          OPERAND_RESTRICT(float, dx), GEOMETRY, int share, int block, int has_bias, int accumulate) {
  LOCATE(dy); LOCATE(packed); LOCATE(bias); LOCATE(dx);
  const int g = get_global_id(2), c0 = get_global_id(1) * block, c1 = min(channels, c0 + block);
  const int n0 = get_global_id(0) * share, n1 = min(batch, n0 + share);
  const int P = OD * OH * OW, plane = D * H * W, rows = (c1 - c0) * TAPS, end = (c1 - c0) * plane, panels = (block * TAPS + MR - 1) / MR;
  float buf[KC * NR] __attribute__((aligned(64)));
  float tile[MR * NR + V] __attribute__((aligned(64)));
  Run runs[NR];    /* first the runs of V positions, then those of HALF, whose windows are inside the image; then all others */
  int column[NR], pixel[NR];    /* where a run begins: in the tile, in its sample and in dx */
  long place[NR];
  packed += ((ulong)g * get_global_size(1) + get_global_id(1)) * panels * outputs * MR;
  dy += (ulong)g * outputs * P;
  dx += ((ulong)g * channels + c0) * plane;
  if (!accumulate) {
    const int planes = has_bias ? c1 - c0 : 1, length = end / planes, whole = length / V * V;
    for (int n = n0; n < n1; n++) {
      global float* to = dx + n * dx_stride;
      for (int c = 0; c < planes; c++, to += length) {
        const float first = has_bias ? bias[g * channels + c0 + c] : 0.0f;
        for (int i = 0; i < whole; i += V) GLOBAL(to + i) = (vec)(first);
        for (int i = whole; i < length; i++) to[i] = first;
      }
    }
  }
  for (int q = n0 * P; q < n1 * P; q += NR) {
    const int columns = min(NR, n1 * P - q);
    int count = 0, ends[3];
    for (int kind = 0; kind < 3; kind++) {
      Run r = run_at(q, columns, PASS);
      for (int j = 0; j < columns; j += r.count, r = run_next(r, columns - j, PASS)) {
        const int inside = SW == 1 && r.z >= 0 && r.z + (KD - 1) * DD < D && r.y >= 0 && r.y + (KH - 1) * DH < H && r.x >= 0 &&
                           r.x + (KW - 1) * DW + (r.count - 1) * SW < W;
        if (kind != (inside && r.count == V ? 0 : inside && r.count == HALF ? 1 : 2)) continue;
        runs[count] = r;
        column[count] = j;
        pixel[count] = (r.z * H + r.y) * W + r.x;
        place[count] = r.n * dx_stride + pixel[count];
        count++;
      }
      ends[kind] = count;
    }
    for (int o0 = 0; o0 < outputs; o0 += KC) {
      const int depth = min(KC, outputs - o0);
      for (int j = 0, n = q / P, p = q % P, length; j < columns; j += length, n++, p = 0) {
        length = min(columns - j, P - p);
        for (int k = 0; k < depth; k++) fetch(dy + n * dy_stride + (ulong)(o0 + k) * P + p, buf + k * NR + j, length);
      }
      if (columns < NR)
        for (int k = 0; k < depth; k++)
          for (int j = columns; j < NR; j++) buf[k * NR + j] = 0.0f;
      for (int r = 0; r < rows; r += MR) {
        global const float* a = packed + (ulong)r * outputs + o0 * MR;
        vec acc[MR][NV];
        MULTIPLY(acc, a[k * MR + i], buf, NR, depth);
        spill(acc, tile);
        for (int i = 0; i < MR && r + i < rows; i++) {
          const int tap = (r + i) % TAPS, kz = tap / (KH * KW) * DD, ky = tap / KW % KH * DH, kx = tap % KW * DW;
          const int row = (((r + i) / TAPS * D + kz) * H + ky) * W + kx;
          const float* from = tile + i * NR;
          global float* to = dx + row;
          int m = 0;
          ROLLED for (; m < ends[0]; m++) GLOBAL(to + place[m]) += PRIVATE(from + column[m]);
          ROLLED for (; m < ends[1]; m++) GLOBAL_HALF(to + place[m]) += PRIVATE_HALF(from + column[m]);
          for (; m < ends[2]; m++)
            if ((uint)(runs[m].z + kz) < (uint)D && (uint)(runs[m].y + ky) < (uint)H)
              add_run(from + column[m], to + place[m], runs[m].count, runs[m].x + kx, W, pixel[m] + row, end);
        }
      }
    }
  }
}

/* dw = dy x^T. Work-item: `cb` channels and `lb` lines of the window x a slice of `share` samples; each slice has its own dw, unless there is
   only one. The rows of x are unrolled for LINE positions at a time, transposed, and multiplied by all outputs. */
SINGLE void ENTRY(backward_filter)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, dw), GEOMETRY,
                            int cb, int lb, int share, int accumulate) {
  LOCATE(x); LOCATE(dy); LOCATE(dw);
  const int g = get_global_id(2), P = OD * OH * OW, plane = D * H * W, depth = channels * TAPS;
  const int chunks = (KD * KH + lb - 1) / lb, b = get_global_id(0), c0 = b / chunks * cb, l0 = b % chunks * lb;
  const int cn = min(channels - c0, cb), ln = min(KD * KH - l0, lb), rows = cn * ln * KW;
  const int n0 = get_global_id(1) * share, n1 = min(batch, n0 + share);
  const ulong group = (ulong)g * channels * plane, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * channels * plane;
  float lines[ROWS * COLUMNS + V] __attribute__((aligned(64)));    /* [row][position] */
  float turned[(ROWS + NR) * LINE] __attribute__((aligned(64)));    /* [panel of NR rows][position][row] */
  float left[MR * (LINE + V) + V] __attribute__((aligned(64)));     /* [output][position] */
  float tile[MR * NR] __attribute__((aligned(64)));
  dy += (ulong)g * outputs * P;
  dw += get_global_id(1) * dw_stride + (ulong)g * outputs * depth + c0 * TAPS + l0 * KW;
  for (int q = n0 * P; q < n1 * P; q += LINE) {
    const int count = min(LINE, n1 * P - q), add = accumulate || q > n0 * P, first = q / P, position = q % P;
    for (int p0 = 0; p0 < count; p0 += NR) {
      const int positions = min(NR, count - p0);
      unroll(x + group, x_stride, readable, lines, COLUMNS, q + p0, positions, c0, cn, l0, ln, PASS);
      for (int r = 0; r < (rows + NR - 1) / NR * NR; r += V) {
        for (int p = 0; p < positions; p += V) {
          vec block[V];
#pragma unroll
          for (int i = 0; i < V; i++) block[i] = PRIVATE(lines + min(r + i, rows - 1) * COLUMNS + p);
          transpose(block);
          float* to = turned + (r / NR * LINE + p0 + p) * NR + r % NR;
#pragma unroll
          for (int i = 0; i < V; i++) PRIVATE(to + i * NR) = block[i];
        }
      }
    }
    for (int o = 0; o < outputs; o += MR) {
      for (int j = 0, n = first, p = position, length; j < count; j += length, n++, p = 0) {
        length = min(count - j, P - p);
        for (int i = 0; i < MR; i++) fetch(dy + n * dy_stride + (ulong)min(o + i, outputs - 1) * P + p, left + i * (LINE + V) + j, length);
      }
      for (int r = 0; r < rows; r += NR) {
        const float* right = turned + r * LINE;
        vec acc[MR][NV];
        MULTIPLY(acc, left[i * (LINE + V) + k], right, NR, count);
        spill(acc, tile);
        finish_rows(tile, dw + (ulong)o * depth + r, depth, min(MR, outputs - o), min(NR, rows - r), NO_BIAS, add, NO_ACTIVATION);
      }
    }
  }
}
