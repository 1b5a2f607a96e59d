/* Convolution for CPU runtimes in its three directions, as matrix products whose unrolled operand exists only tile by tile.

   Notation: a row k = (channel, tap) of the unrolled input is what one filter element sees; a column q = (sample, position) is one output
   pixel, numbered through the whole batch, so that small images fill the vectors too.

     forward           y[o][q]  = sum over k of w[o][k] x[k][q]     the columns of x are unrolled into private memory, KC rows at a time
     backward_data     x[k][q]  = sum over o of w[o][k] y[o][q]     each tile of it is added to dx at once, by the work-item that owns the channel
     backward_filter   w[o][k]  = sum over q of y[o][q] x[k][q]     as forward, unrolled columns turned into rows

   V, NV, MR, KC                the register tile, see tile_cpu.h
   KD, KH, KW                   window (taps); SD, SH, SW stride; DD, DH, DW dilation: depth, height, width
   QC                           positions that backward_filter sums in one go
   RB                           rows k that one work-item of backward_filter holds

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
#ifndef QC
#define QC 128
#endif
#ifndef RB
#define RB 128
#endif

#define TAPS (KD * KH * KW)
#define GEOMETRY int batch, int channels, int outputs, int D, int H, int W, int OD, int OH, int OW, int pd, int ph, int pw
#define PASS batch, channels, outputs, D, H, W, OD, OH, OW, pd, ph, pw
#define SINGLE kernel __attribute__((reqd_work_group_size(1, 1, 1)))

/* Rows are worked on in blocks: all taps of some channels, or some taps of one channel where the window alone is longer than `limit`. */
#define BLOCK_TAPS(limit) (TAPS <= (limit) ? TAPS : (limit))
#define BLOCK_CHANNELS(limit) (TAPS <= (limit) ? (limit) / TAPS : 1)

/* A stretch of columns within one row of one image: `count` positions from (z, y, x) of sample n on. */
typedef struct { int n, z, y, x, count; } Run;

inline Run run_at(int q, int limit, GEOMETRY) {
  Run r;
  r.x = q % OW;
  q /= OW;
  r.y = q % OH;
  q /= OH;
  r.z = q % OD;
  r.n = q / OD;
  r.count = min(OW - r.x, limit);
  return r;
}

inline void run_next(Run* r, int limit, GEOMETRY) {
  r->x = 0;
  if (++r->y == OH) {
    r->y = 0;
    if (++r->z == OD) {
      r->z = 0;
      r->n++;
    }
  }
  r->count = min(OW, limit);
}

/* Where a run meets a tap: the pixel of its position 0 (relative to the channel's plane, possibly outside) and the positions [low, high)
   that fall on the image. */
typedef struct { int pixel, low, high; } Span;

inline Span span_of(Run r, int tap, GEOMETRY) {
  const int iz = r.z * SD - pd + tap / (KH * KW) * DD, iy = r.y * SH - ph + tap / KW % KH * DH, ix = r.x * SW - pw + tap % KW * DW;
  const int seen = iz >= 0 && iz < D && iy >= 0 && iy < H;
  Span s;
  s.pixel = (iz * H + iy) * W + ix;
  s.low = min(ix < 0 ? (SW - 1 - ix) / SW : 0, r.count);
  s.high = max(s.low, min(r.count, seen && ix < W ? (W - ix + SW - 1) / SW : 0));
  return s;
}

/* Zeros to[from, to_end) in whole vectors: up to V - 1 more are overwritten. */
inline void clear(float* to, int count) {
  for (int t = 0; t < count; t += V) VSTORE((vec)(0), 0, to + t);
}

/* to[row * ld + j] = unrolled input of channels [c0, c0 + cn), taps [t0, t0 + tn), columns [q, q + count): row = (channel, tap).
   Writes up to V - 1 floats beyond each row's end. `x` is the group's first channel in sample 0, `readable` what may be read from there on. */
inline void unroll(global const float* x, ulong x_stride, ulong readable, float* to, int ld, int q, int count,
                   int c0, int cn, int t0, int tn, GEOMETRY) {
  const int plane = D * H * W;
  Run r = run_at(q, count, PASS);
  for (int j = 0; j < count; j += r.count, run_next(&r, count - j, PASS)) {
    const ulong sample = r.n * x_stride + (ulong)c0 * plane;
    for (int t = 0; t < tn; t++) {
      const Span s = span_of(r, t0 + t, PASS);
      float* row = to + t * ld + j;
      if (s.low == s.high) {
        for (int c = 0; c < cn; c++, row += tn * ld) clear(row, r.count);
        continue;
      }
      const int length = s.high - s.low, rounded = (length + V - 1) / V * V;
      const ulong at = sample + s.pixel + s.low * SW, step = plane;
      global const float* from = x + at;
      if (SW == 1 && at + (cn - 1) * step + rounded <= readable) {
        if (s.low == 0 && s.high == r.count && rounded == V) {
          for (int c = 0; c < cn; c++, row += tn * ld, from += step) VSTORE(VLOAD(0, from), 0, row);
        } else {
          for (int c = 0; c < cn; c++, row += tn * ld, from += step) {
            clear(row, s.low);
            for (int i = 0; i < length; i += V) VSTORE(VLOAD(0, from + i), 0, row + s.low + i);
            clear(row + s.high, r.count - s.high);
          }
        }
      } else {
        for (int c = 0; c < cn; c++, row += tn * ld, from += step) {
          clear(row, s.low);
          for (int i = 0; i < length; i++) row[s.low + i] = from[i * SW];
          clear(row + s.high, r.count - s.high);
        }
      }
    }
  }
}

/* Filters as panels of MR rows, zeros behind the last: [group][block][panel][depth][MR]. Element (row, k) of a group is at row * row_step +
   k * k_step in w; a block is `rows` rows. Work-item: KC columns k of a panel. */
SINGLE void pack(OPERAND_RESTRICT(const float, w), OPERAND_RESTRICT(float, packed), int total, int rows, int depth, int row_step, int k_step,
                 ulong group_step) {
  LOCATE(w); LOCATE(packed);
  const int panels = (rows + MR - 1) / MR, panel = get_global_id(1), g = get_global_id(2);
  const int r0 = panel % panels * MR, r = panel / panels * rows + r0, valid = min(MR, min(rows - r0, total - r));
  const int k0 = get_global_id(0) * KC, k1 = min(depth, k0 + KC);
  w += g * group_step + (ulong)r * row_step;
  packed += ((ulong)g * get_global_size(1) + panel) * depth * MR;
  for (int k = k0; k < k1; k++)
    for (int i = 0; i < MR; i++) packed[(ulong)k * MR + i] = i < valid ? w[(ulong)k * k_step + (ulong)i * row_step] : 0.0f;
}

/* y = w x (+ bias) (+ y). Work-item: NR columns x `block` outputs. */
SINGLE void forward(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), GEOMETRY, int block, int has_bias, int accumulate, float slope) {
  LOCATE(x); LOCATE(packed); LOCATE(bias); LOCATE(y);
  const int g = get_global_id(2), first = get_global_id(1) * block, last = min(outputs, first + block);
  const int P = OD * OH * OW, depth = channels * TAPS, plane = D * H * W;
  const int q = get_global_id(0) * NR, columns = min(NR, batch * P - q);
  const ulong group = (ulong)g * channels * plane, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * channels * plane;
  const int row = NR + V;
  float buf[KC * (NR + V) + V] __attribute__((aligned(64)));
  float edge[NR] __attribute__((aligned(64)));
  packed += (ulong)g * ((outputs + MR - 1) / MR * MR) * depth;
  bias += g * outputs;
  y += (ulong)g * outputs * P;
  const int whole = columns == NR && q % P + NR <= P;
  for (int c0 = 0; c0 < channels; c0 += BLOCK_CHANNELS(KC)) {
    for (int t0 = 0; t0 < TAPS; t0 += BLOCK_TAPS(KC)) {
      const int cn = min(channels - c0, BLOCK_CHANNELS(KC)), tn = min(TAPS - t0, BLOCK_TAPS(KC));
      const int k0 = c0 * TAPS + t0, kn = cn * tn, add = accumulate || k0 > 0;
      const float leak = k0 + kn < depth ? 1.0f : slope;
      unroll(x + group, x_stride, readable, buf, row, q, columns, c0, cn, t0, tn, PASS);
      if (columns < NR)
        for (int k = 0; k < kn; k++) clear(buf + k * row + columns, NR - columns);
      for (int o = first; o < last; o += MR) {
        global const float* a = packed + (ulong)o * depth + (ulong)k0 * MR;
        vec acc[MR][NV];
        MULTIPLY(acc, a[k * MR + i], buf, row, kn);
        if (whole) {
          global float* to = y + q / P * y_stride + (ulong)o * P + q % P;
#pragma unroll
          for (int i = 0; i < MR; i++) {
            if (o + i >= last) continue;
            const float b = has_bias && k0 == 0 ? bias[o + i] : 0.0f;
#pragma unroll
            for (int j = 0; j < NV; j++) {
              vec v = acc[i][j] + b;
              if (add) v += VLOAD(j, to + (ulong)i * P);
              VSTORE(LEAK(v, leak), j, to + (ulong)i * P);
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < MR; i++) {
            if (o + i >= last) continue;
            const float b = has_bias && k0 == 0 ? bias[o + i] : 0.0f;
#pragma unroll
            for (int j = 0; j < NV; j++) VSTORE(acc[i][j] + b, j, edge);
            for (int j = 0, p = q % P, n = q / P; j < columns; n++, p = 0) {
              global float* to = y + n * y_stride + (ulong)(o + i) * P + p;
              const int end = min(columns, j + P - p), begin = j;
              for (; j < end; j++) {
                const float v = edge[j] + (add ? to[j - begin] : 0.0f);
                to[j - begin] = LEAK(v, leak);
              }
            }
          }
        }
      }
    }
  }
}

/* dx = w^T dy, unrolled tile by tile and added up in place. Work-item: `share` samples x `block` channels, which nobody else writes.
   `direct`: a pointwise window, where every pixel gets one sum and needs no zero to start from. */
SINGLE void backward_data(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(float, dx), GEOMETRY,
                          int share, int block, int direct, int accumulate) {
  LOCATE(dy); LOCATE(packed); LOCATE(dx);
  const int g = get_global_id(2), c0 = get_global_id(1) * block, c1 = min(channels, c0 + block);
  const int n0 = get_global_id(0) * share, n1 = min(batch, n0 + share);
  const int P = OD * OH * OW, plane = D * H * W, rows = (c1 - c0) * TAPS, panels = (block * TAPS + MR - 1) / MR;
  float buf[KC * NR] __attribute__((aligned(64)));
  float tile[MR * NR] __attribute__((aligned(64)));
  Run runs[NR];
  packed += ((ulong)g * get_global_size(1) + get_global_id(1)) * panels * outputs * MR;
  dy += (ulong)g * outputs * P;
  dx += ((ulong)g * channels + c0) * plane;
  if (!accumulate && !direct) {
    for (int n = n0; n < n1; n++) {
      global float* to = dx + n * dx_stride;
      const int count = (c1 - c0) * plane, whole = count / V * V;
      for (int i = 0; i < whole; i += V) VSTORE((vec)(0), 0, to + i);
      for (int i = whole; i < count; i++) to[i] = 0.0f;
    }
  }
  for (int q = n0 * P; q < n1 * P; q += NR) {
    const int columns = min(NR, n1 * P - q);
    int count = 0;
    runs[0] = run_at(q, columns, PASS);
    for (int j = runs[0].count; j < columns; j += runs[count].count) {
      runs[count + 1] = runs[count];
      count++;
      run_next(&runs[count], columns - j, PASS);
    }
    count++;
    for (int o0 = 0; o0 < outputs; o0 += KC) {
      const int depth = min(KC, outputs - o0), add = accumulate || !direct || o0 > 0;
      for (int j = 0, p = q % P, n = q / P; j < columns; n++, p = 0) {
        global const float* from = dy + n * dy_stride + (ulong)o0 * P + p;
        const int length = min(columns - j, P - p);
        if (length == NR) {
          for (int k = 0; k < depth; k++)
#pragma unroll
            for (int i = 0; i < NV; i++) VSTORE(VLOAD(i, from + (ulong)k * P), i, buf + k * NR);
        } else {
          for (int k = 0; k < depth; k++)
            for (int i = 0; i < length; i++) buf[k * NR + j + i] = from[(ulong)k * P + i];
        }
        j += length;
      }
      for (int k = 0; k < depth; k++)
        for (int j = columns; j < NR; j++) buf[k * NR + j] = 0.0f;
      for (int r = 0; r < rows; r += MR) {
        global const float* a = packed + (ulong)r * outputs + o0 * MR;
        vec acc[MR][NV];
        MULTIPLY(acc, a[k * MR + i], buf, NR, depth);
#pragma unroll
        for (int i = 0; i < MR; i++)
#pragma unroll
          for (int j = 0; j < NV; j++) VSTORE(acc[i][j], j, tile + i * NR);
        const int valid = min(MR, rows - r);
        for (int m = 0, j = 0; m < count; j += runs[m++].count) {
          for (int i = 0; i < valid; i++) {
            const Span s = span_of(runs[m], (r + i) % TAPS, PASS);
            global float* to = dx + runs[m].n * dx_stride + (ulong)((r + i) / TAPS) * plane + s.pixel;
            const float* from = tile + i * NR + j;
            int t = s.low;
            if (SW == 1) {
              for (; t + V <= s.high; t += V) VSTORE(add ? VLOAD(0, from + t) + VLOAD(0, to + t) : VLOAD(0, from + t), 0, to + t);
              for (; t + 4 <= s.high; t += 4) vstore4(add ? vload4(0, from + t) + vload4(0, to + t) : vload4(0, from + t), 0, to + t);
            }
            for (; t < s.high; t++) to[t * SW] = add ? to[t * SW] + from[t] : from[t];
          }
        }
      }
    }
  }
}

/* dw = dy x^T. Work-item: a block of rows k x a slice of `share` samples; each slice has a dw of its own, unless there is one only.
   RB rows of x are unrolled for QC positions, turned, and multiplied by all outputs. */
SINGLE void backward_filter(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, dw), GEOMETRY,
                            int share, int accumulate) {
  LOCATE(x); LOCATE(dy); LOCATE(dw);
  const int g = get_global_id(2), P = OD * OH * OW, plane = D * H * W, depth = channels * TAPS;
  const int chunks = (TAPS + BLOCK_TAPS(RB) - 1) / BLOCK_TAPS(RB), b = get_global_id(0);
  const int c0 = b / chunks * BLOCK_CHANNELS(RB), t0 = b % chunks * BLOCK_TAPS(RB);
  const int cn = min(channels - c0, BLOCK_CHANNELS(RB)), tn = min(TAPS - t0, BLOCK_TAPS(RB)), rows = cn * tn;
  const int n0 = get_global_id(1) * share, n1 = min(batch, n0 + share);
  const ulong group = (ulong)g * channels * plane, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * channels * plane;
  float lines[RB * (QC + V) + V] __attribute__((aligned(64)));      /* [row][position] */
  float turned[(RB + NR) * QC] __attribute__((aligned(64)));        /* [panel of NR rows][position][row] */
  float left[MR * (QC + V) + V] __attribute__((aligned(64)));       /* [output][position] */
  float edge[NR] __attribute__((aligned(64)));
  dy += (ulong)g * outputs * P;
  dw += get_global_id(1) * dw_stride + (ulong)g * outputs * depth + c0 * TAPS + t0;
  const int ld = QC + V;
  for (int q = n0 * P; q < n1 * P; q += QC) {
    const int count = min(QC, n1 * P - q), add = accumulate || q > n0 * P;
    unroll(x + group, x_stride, readable, lines, ld, q, count, c0, cn, t0, tn, PASS);
    for (int r = 0; r < (rows + NR - 1) / NR * NR; r += V) {
      for (int p = 0; p < count; p += V) {
        vec block[V];
#pragma unroll
        for (int i = 0; i < V; i++) block[i] = VLOAD(0, lines + min(r + i, rows - 1) * ld + p);
        transpose(block);
        float* to = turned + (r / NR * QC + p) * NR + r % NR;
#pragma unroll
        for (int i = 0; i < V; i++) VSTORE(block[i], 0, to + i * NR);
      }
    }
    for (int o = 0; o < outputs; o += MR) {
      for (int i = 0; i < MR; i++) {
        for (int j = 0, p = q % P, n = q / P; j < count; n++, p = 0) {
          global const float* from = dy + n * dy_stride + (ulong)min(o + i, outputs - 1) * P + p;
          const int length = min(count - j, P - p), whole = length / V * V;
          for (int t = 0; t < whole; t += V) VSTORE(VLOAD(0, from + t), 0, left + i * ld + j + t);
          for (int t = whole; t < length; t++) left[i * ld + j + t] = from[t];
          j += length;
        }
      }
      for (int r = 0; r < rows; r += NR) {
        const float* right = turned + r * QC;
        vec acc[MR][NV];
        MULTIPLY(acc, left[i * ld + k], right, NR, count);
        const int columns = min(NR, rows - r);
        global float* to = dw + (ulong)o * depth + r;
#pragma unroll
        for (int i = 0; i < MR; i++) {
          if (o + i >= outputs) continue;
          global float* line = to + (ulong)i * depth;
          if (columns == NR) {
#pragma unroll
            for (int j = 0; j < NV; j++) VSTORE(add ? acc[i][j] + VLOAD(j, line) : acc[i][j], j, line);
          } else {
#pragma unroll
            for (int j = 0; j < NV; j++) VSTORE(acc[i][j], j, edge);
            for (int j = 0; j < columns; j++) line[j] = add ? edge[j] + line[j] : edge[j];
          }
        }
      }
    }
  }
}

/* sum[i] (+)= sum over slices of part[slice][i], always in the same order. Work-item: `share` elements. */
SINGLE void add_slices(OPERAND_RESTRICT(const float, part), OPERAND_RESTRICT(float, sum), int slices, int count, int share, int accumulate) {
  LOCATE(part); LOCATE(sum);
  const int first = get_global_id(0) * share, last = min(count, first + share);
  int i = first;
  for (; i + V <= last; i += V) {
    vec v = accumulate ? VLOAD(0, sum + i) : (vec)(0);
    for (int s = 0; s < slices; s++) v += VLOAD(0, part + s * part_stride + i);
    VSTORE(v, 0, sum + i);
  }
  for (; i < last; i++) {
    float v = accumulate ? sum[i] : 0.0f;
    for (int s = 0; s < slices; s++) v += part[s * part_stride + i];
    sum[i] = v;
  }
}

/* db[channel] = sum of dy over a slice of `share` samples and all positions. Work-item: channel, slice. */
SINGLE void backward_bias(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, db), int batch, int P, int share, int accumulate) {
  LOCATE(dy); LOCATE(db);
  const int o = get_global_id(0), n0 = get_global_id(1) * share, n1 = min(batch, n0 + share);
  vec sums[2] = {(vec)(0), (vec)(0)};
  float rest = 0.0f;
  for (int n = n0; n < n1; n++) {
    global const float* from = dy + n * dy_stride + (ulong)o * P;
    int p = 0;
    for (; p + 2 * V <= P; p += 2 * V) {
      sums[0] += VLOAD(0, from + p);
      sums[1] += VLOAD(1, from + p);
    }
    for (; p < P; p++) rest += from[p];
  }
  float lanes[V];
  VSTORE(sums[0] + sums[1], 0, lanes);
  for (int i = 0; i < V; i++) rest += lanes[i];
  db += get_global_id(1) * db_stride;
  db[o] = accumulate ? db[o] + rest : rest;
}
