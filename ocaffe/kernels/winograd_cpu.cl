/* Convolution with 3 x 3 windows and stride 1 for CPU runtimes by Winograd's F(4x4, 3x3): Lavin & Gray, "Fast algorithms for convolutional
   neural networks", 2015. A tile is 4 x 4 outputs, which see 6 x 6 inputs; both and the filters are transformed to 36 values, between which 36
   matrix products take a quarter of the multiplications. backward_data is forward with turned filters.

     filter    U[p] = G w G'                      p < 36, for every (output, channel)
     forward   V[p] = B' x B  for every (channel, tile);  M[p] = U[p] V[p], summed over channels;  y = A' M A (+ bias) (+ y), then the ReLU
     backward_filter, in four kernels for some tiles after others
       input     V, [group][36][panel of NR channels][tile][NR]
       gradient  D[p] = A dy A'  for every (output, tile): [group][36][output][tile]
       product   S[p] (+)= D[p] V[p]', summed over tiles: [group][36][output][channel]
       window    dw = G' S G (+ dw)

   V, NV, MR, KC    the register tile, see tile_cpu.h: MR outputs x NR tiles

   forward works on NR tiles at a time, numbered through the whole batch. What it transformed of them lies in a workspace of the work-item, which
   stays in the caches: [36][channels][NR], then the products of `chunk` outputs, [36][chunk][NR].
   Work-items: filter: (KC channels, panel of MR outputs, group). forward: (`share` blocks of NR tiles, `block` outputs, group). input: (NR tiles,
   NR channels, group). gradient: (NR tiles, BURST outputs, group). product: (p, `block` outputs, group). window: (1, output, group). */
#include "common.h"
#include "epilogue.h"
#include "tile_cpu.h"

#define SIDE 6
#define POINTS 36
#define OUT 4
#define FETCH(p) __builtin_prefetch((const void*)(size_t)(p))
#ifndef BURST
#define BURST 8
#endif
#define RUN 64   /* channels whose filters are written together: memory takes long runs faster */
#define PIPELINE 2 /* channels or outputs at a time: what one step writes, the next should not read at once in other vectors */

/* From a p to the next: not a power of two, which would put all of them in one set of the caches. */
#define STEP(count) ((ulong)(count) + V)

/* Six values through B', the transform of the input. */
#define TRANSFORM_INPUT(to, d)                                                                        \
  do {                                                                                                \
    const vec a_ = d[4] - 4.0f * d[2], b_ = d[3] - 4.0f * d[1], c_ = d[4] - d[2], e_ = 2.0f * (d[3] - d[1]); \
    to[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];                                                         \
    to[1] = a_ + b_;                                                                                  \
    to[2] = a_ - b_;                                                                                  \
    to[3] = c_ + e_;                                                                                  \
    to[4] = c_ - e_;                                                                                  \
    to[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];                                                         \
  } while (0)

/* Six values through A', the transform of the products: four. */
#define TRANSFORM_OUTPUT(to, m)                                                     \
  do {                                                                              \
    const vec s_ = m[1] + m[2], d_ = m[1] - m[2], t_ = m[3] + m[4], e_ = m[3] - m[4]; \
    to[0] = m[0] + s_ + t_;                                                         \
    to[1] = d_ + 2.0f * e_;                                                         \
    to[2] = s_ + 4.0f * t_;                                                         \
    to[3] = d_ + 8.0f * e_ + m[5];                                                  \
  } while (0)

/* Four values through A, the transform of the gradient of the outputs: six. */
#define TRANSFORM_GRADIENT(to, d)                                                     \
  do {                                                                                \
    const vec a_ = d[0] + d[2], b_ = d[1] + d[3], c_ = d[0] + 4.0f * d[2], e_ = 2.0f * d[1] + 8.0f * d[3]; \
    to[0] = d[0];                                                                     \
    to[1] = a_ + b_;                                                                  \
    to[2] = a_ - b_;                                                                  \
    to[3] = c_ + e_;                                                                  \
    to[4] = c_ - e_;                                                                  \
    to[5] = d[3];                                                                     \
  } while (0)

/* Six values through G', which leads to the gradient of the filters: three. */
#define TRANSFORM_WINDOW(to, m)                                                       \
  do {                                                                                \
    const vec s_ = m[1] + m[2], t_ = m[3] + m[4];                                     \
    to[0] = m[0] * 0.25f - s_ * (1.0f / 6) + t_ * (1.0f / 24);                        \
    to[1] = (m[2] - m[1]) * (1.0f / 6) + (m[3] - m[4]) * (1.0f / 12);                 \
    to[2] = (t_ - s_) * (1.0f / 6) + m[5];                                            \
  } while (0)

/* Three values through G, the transform of the filters: six. */
#define TRANSFORM_FILTER(to, g)                                                     \
  do {                                                                              \
    const vec s_ = (g[0] + g[2]) * (-1.0f / 6), t_ = g[0] * (1.0f / 24) + g[2] * (1.0f / 6); \
    to[0] = g[0] * 0.25f;                                                           \
    to[1] = s_ - g[1] * (1.0f / 6);                                                 \
    to[2] = s_ + g[1] * (1.0f / 6);                                                 \
    to[3] = t_ + g[1] * (1.0f / 12);                                                \
    to[4] = t_ - g[1] * (1.0f / 12);                                                \
    to[5] = g[2];                                                                   \
  } while (0)

inline void copy(const float* from, global float* to, int count) {
  int i = 0;
  ROLLED for (; i + V <= count; i += V) GLOBAL(to + i) = PRIVATE(from + i);
  ROLLED for (; i < count; i++) to[i] = from[i];
}

/* U as [group][panel of MR rows][36][depth][MR]. Element (row, k, tap) is
   w[group * group_step + row * row_step + k * step + tap], taps backwards if `turned`. */
SINGLE void filter(OPERAND_RESTRICT(const float, w), OPERAND_RESTRICT(float, packed), int rows, int depth, int group_step, int row_step, int step,
                   int turned) {
  LOCATE(w); LOCATE(packed);
  const int r0 = get_global_id(1) * MR, k0 = get_global_id(0) * KC, k1 = min(depth, k0 + KC);
  float taps[9][MR * V] __attribute__((aligned(64)));
  float made[POINTS][RUN * MR] __attribute__((aligned(64)));
  const int last = rows - 1 - r0, sign = turned ? -1 : 1;
  w += (ulong)get_global_id(2) * group_step + (ulong)r0 * row_step + (turned ? 8 : 0);
  packed += ((ulong)get_global_id(2) * get_global_size(1) + get_global_id(1)) * POINTS * depth * MR;
  for (int k = k0; k < k1; k += RUN) {
    const int valid = min(RUN, k1 - k);
    for (int b = 0; b < valid; b += V) {
      for (int i = 0; i < MR; i++) { /* rows behind the last are its copies: what they give is not written */
        global const float* row = w + (ulong)min(i, last) * row_step + (ulong)(k + b) * step;
        for (int j = 0; j < min(V, valid - b); j++, row += step)
#pragma unroll
          for (int t = 0; t < 9; t++) taps[t][j * MR + i] = row[sign * t];
      }
      for (int j = 0; j < MR * V; j += V) {
        vec down[3][SIDE];
#pragma unroll
        for (int x = 0; x < 3; x++) {
          const vec column[3] = {PRIVATE(taps[x] + j), PRIVATE(taps[3 + x] + j), PRIVATE(taps[6 + x] + j)};
          TRANSFORM_FILTER(down[x], column);
        }
#pragma unroll
        for (int y = 0; y < SIDE; y++) {
          const vec row[3] = {down[0][y], down[1][y], down[2][y]};
          vec u[SIDE];
          TRANSFORM_FILTER(u, row);
#pragma unroll
          for (int x = 0; x < SIDE; x++) PRIVATE(made[y * SIDE + x] + b * MR + j) = u[x];
        }
      }
    }
    for (int p = 0; p < POINTS; p++) copy(made[p], packed + ((ulong)p * depth + k) * MR, valid * MR);
  }
}

/* Up to V tiles side by side in one image: number `first` and following of their NR. x, y: the first pixel that they see, which may be outside;
   slot: where they begin in `Rows`. */
typedef struct { int n, y, x, count, first, slot; } Strip;

/* The pixels that the strips of NR tiles see in one channel, transformed downwards; in each row sorted by their remainder modulo 4, so that
   neighbouring tiles lie side by side. A strip takes the slots of its tiles and of the beginning of a next one, in whole vectors of pixels. */
#define SLOTS (4 * NR + V)
typedef float Rows[SIDE][OUT][SLOTS];

/* Strips of tiles [t, end), at most NR; returns how many. */
inline int cut(Strip* strips, int t, int end, int across, int down, int ph, int pw) {
  int count = 0, slot = 0;
  for (int first = 0, length = min(NR, end - t); first < length; count++) {
    const int tx = (t + first) % across, ty = (t + first) / across;
    Strip s = {ty / down, ty % down * OUT - ph, tx * OUT - pw, min(min(across - tx, V), length - first), first, slot};
    strips[count] = s;
    first += s.count;
    slot += (OUT * s.count + 2 + V - 1) / V * (V / OUT);
  }
  return count;
}

/* Asks for the pixels of a strip, which lie a page apart in the next channel, where no processor would expect them. */
inline void expect(global const float* x, ulong at, ulong readable, Strip s, int H, int W) {
  const int length = OUT * s.count + 2;
  for (int r = max(0, -s.y); r < min(SIDE, H - s.y); r++) {
    const ulong from = at + (s.y + r) * W + max(0, s.x);
    for (int j = 0; j < length; j += 16) FETCH(x + min(from + j, readable - 1));
  }
}

/* One strip of a channel whose pixel (0, 0) is at x[at]; `readable` floats may be read from x. A tile sees `side` pixels each way: 6 of an input, 4 of
   the gradient of an output. */
inline void transform_down(global const float* x, ulong at, ulong readable, Strip s, int H, int W, int side, Rows rows) {
  const long first = (long)at + s.y * W + s.x, begin = (long)at + max(s.y, 0) * W + s.x;
  const int length = OUT * s.count + side - OUT, reach = (length + V - 1) / V * V;
  const int safe = begin >= 0 && (long)at + (min(s.y + side, H) - 1) * W + s.x + reach <= (long)readable;
  for (int j = 0; j < reach; j += V) {
    vec d[SIDE], t[SIDE];
    const ivec on = PASTE(convert_uint, V)(LANES + (s.x + j)) < (uvec)(W);
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
      d[r] = (vec)(0);
      if (r < side && (uint)(s.y + r) < (uint)H) {
        if (safe) d[r] = on ? GLOBAL(x + first + r * W + j) : (vec)(0);
        else {
          float lanes[V];
          for (int l = 0; l < V; l++) lanes[l] = j + l < length && (uint)(s.x + j + l) < (uint)W ? x[first + r * W + j + l] : 0.0f;
          d[r] = PRIVATE(lanes);
        }
      }
    }
    if (side == SIDE) TRANSFORM_INPUT(t, d);
    else TRANSFORM_GRADIENT(t, d);
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
      float* sorted = rows[r][0] + s.slot + j / OUT;
#if V == 16
      vstore4(t[r].s048c, 0, sorted);
      vstore4(t[r].s159d, 0, sorted + SLOTS);
      vstore4(t[r].s26ae, 0, sorted + 2 * SLOTS);
      vstore4(t[r].s37bf, 0, sorted + 3 * SLOTS);
#elif V == 8
      vstore2(t[r].s04, 0, sorted);
      vstore2(t[r].s15, 0, sorted + SLOTS);
      vstore2(t[r].s26, 0, sorted + 2 * SLOTS);
      vstore2(t[r].s37, 0, sorted + 3 * SLOTS);
#else
      sorted[0] = t[r].s0, sorted[SLOTS] = t[r].s1, sorted[2 * SLOTS] = t[r].s2, sorted[3 * SLOTS] = t[r].s3;
#endif
    }
  }
}

/* The other way: the 36 values of each tile, to[p * (NR + V) + tile]. Writes up to V - 1 floats beyond a row's end. */
inline void transform_across(Rows rows, Strip s, int side, float* to) {
#pragma unroll
  for (int r = 0; r < SIDE; r++) {
    vec d[SIDE], t[SIDE];
#pragma unroll
    for (int c = 0; c < SIDE; c++) d[c] = PRIVATE(rows[r][c % OUT] + s.slot + c / OUT);
    if (side == SIDE) TRANSFORM_INPUT(t, d);
    else TRANSFORM_GRADIENT(t, d);
#pragma unroll
    for (int c = 0; c < SIDE; c++) PRIVATE(to + (r * SIDE + c) * (NR + V) + s.first) = t[c];
  }
}

/* `planes` channels of the strips of a panel, from x on: columns[channel][p * (NR + V) + tile]. */
inline void transform(global const float* x, ulong x_stride, ulong readable, const Strip* strips, int count, int H, int W, int side, int planes,
                      Rows* rows, float (*columns)[POINTS * (NR + V) + V]) {
  const int plane = H * W;
  for (int b = 0; b < planes; b += PIPELINE) {
    for (int c = b; c < min(planes, b + PIPELINE); c++)
      for (int i = 0; i < count; i++)
        transform_down(x, strips[i].n * x_stride + (ulong)c * plane, readable, strips[i], H, W, side, rows[c - b]);
    for (int c = b + PIPELINE; c < b + 2 * PIPELINE; c++)
      for (int i = 0; i < count; i++) expect(x, strips[i].n * x_stride + (ulong)c * plane, readable, strips[i], H, W);
    for (int c = b; c < min(planes, b + PIPELINE); c++)
      for (int i = 0; i < count; i++) transform_across(rows[c - b], strips[i], side, columns[c]);
  }
}

/* 4 V neighbouring pixels from the V tiles' first, second, ... pixel. */
inline void interleave(const vec p[OUT], float* to) {
  vec even[2], odd[2], whole[OUT];
  even[0].even = p[0].lo, even[0].odd = p[2].lo, even[1].even = p[0].hi, even[1].odd = p[2].hi;
  odd[0].even = p[1].lo, odd[0].odd = p[3].lo, odd[1].even = p[1].hi, odd[1].odd = p[3].hi;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    whole[2 * i].even = even[i].lo, whole[2 * i].odd = odd[i].lo;
    whole[2 * i + 1].even = even[i].hi, whole[2 * i + 1].odd = odd[i].hi;
  }
#pragma unroll
  for (int i = 0; i < OUT; i++) PRIVATE(to + i * V) = whole[i];
}

/* The 4 x 4 outputs of V tiles, whose 36 products are `pitch` apart: rows of 4 V pixels. */
inline void transform_back(global const float* from, ulong pitch, float* to) {
  vec half_way[OUT][SIDE];
#pragma unroll
  for (int c = 0; c < SIDE; c++) {
    vec m[SIDE], t[OUT];
#pragma unroll
    for (int r = 0; r < SIDE; r++) m[r] = GLOBAL(from + (r * SIDE + c) * pitch);
    TRANSFORM_OUTPUT(t, m);
#pragma unroll
    for (int r = 0; r < OUT; r++) half_way[r][c] = t[r];
  }
#pragma unroll
  for (int r = 0; r < OUT; r++) {
    vec t[OUT];
    TRANSFORM_OUTPUT(t, half_way[r]);
    interleave(t, to + r * (OUT * NR + V));
  }
}

SINGLE void forward(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), OPERAND_RESTRICT(float, space), int batch, int channels, int outputs, int H, int W, int OH, int OW,
                    int ph, int pw, int share, int block, int chunk, int has_bias, int accumulate, float slope) {
  LOCATE(x); LOCATE(packed); LOCATE(bias); LOCATE(y); LOCATE(space);
  const int g = get_global_id(2), o0 = get_global_id(1) * block, o1 = min(outputs, o0 + block);
  const int across = (OW + OUT - 1) / OUT, down = (OH + OUT - 1) / OUT, tiles = batch * down * across, plane = H * W;
  const ulong group = (ulong)g * channels * plane, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * channels * plane;
  const ulong pitch = STEP(channels * NR);
  Rows rows[PIPELINE] __attribute__((aligned(64)));
  float columns[BURST][POINTS * (NR + V) + V] __attribute__((aligned(64)));
  float pixels[PIPELINE][OUT][OUT * NR + V] __attribute__((aligned(64)));
  Strip strips[NR];
  space += ((ulong)(g * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0)) * space_stride;
  global float* products = space + POINTS * pitch;
  x += group;
  y += (ulong)g * outputs * OH * OW;
  bias += g * outputs;
  packed += (ulong)g * ((outputs + MR - 1) / MR * MR) * POINTS * channels;
  for (int i = 0; i < PIPELINE * SIDE * OUT * SLOTS; i++) rows[0][0][0][i] = 0.0f;
  for (int i = 0; i < BURST * (POINTS * (NR + V) + V); i++) columns[0][i] = 0.0f;
  for (int t0 = get_global_id(0) * share * NR, end = min(tiles, t0 + share * NR); t0 < end; t0 += NR) {
    const int count = cut(strips, t0, end, across, down, ph, pw);
    for (int c0 = 0; c0 < channels; c0 += BURST) {
      const int cn = min(BURST, channels - c0);
      transform(x + (ulong)c0 * plane, x_stride, readable - (ulong)c0 * plane, strips, count, H, W, SIDE, cn, rows, columns);
      for (int p = 0; p < POINTS; p++)
        for (int c = 0; c < cn; c++)
#pragma unroll
          for (int j = 0; j < NV; j++)
            GLOBAL(space + p * pitch + (c0 + c) * NR + j * V) = PRIVATE(columns[c] + p * (NR + V) + j * V);
    }
    for (int first = o0; first < o1; first += chunk) {
      const int last = min(o1, first + chunk);
      for (int p = 0; p < POINTS; p++)
        for (int k0 = 0; k0 < channels; k0 += KC) {
          const int depth = min(KC, channels - k0);
          global const float* right = space + p * pitch + k0 * NR;
          for (int o = first; o < last; o += MR) {
            global const float* left = packed + ((ulong)o * POINTS + p * MR) * channels + k0 * MR;
            global float* to = products + (p * chunk + o - first) * NR;
            vec acc[MR][NV];
            MULTIPLY_AT(GLOBAL, acc, left[k * MR + i], right, NR, depth);
#pragma unroll
            for (int i = 0; i < MR; i++)
#pragma unroll
              for (int j = 0; j < NV; j++) {
                if (k0) acc[i][j] += GLOBAL(to + i * NR + j * V);
                GLOBAL(to + i * NR + j * V) = acc[i][j];
              }
          }
        }
      for (int o = first; o < last; o += PIPELINE) {
        const int on = min(PIPELINE, last - o);
        for (int i = 0; i < on; i++)
          for (int v = 0; v < NV; v++) transform_back(products + (o - first + i) * NR + v * V, chunk * NR, pixels[i][0] + v * OUT * V);
        for (int j = 0; j < on; j++)
          for (int i = 0; i < count; i++) {
            const Strip s = strips[i];
            const int oy = s.y + ph, ox = s.x + pw;
            global float* to = y + s.n * y_stride + ((ulong)(o + j) * OH + oy) * OW + ox;
            for (int r = 0; r < min(OUT, OH - oy); r++, to += OW)
              finish(pixels[j][r] + OUT * s.first, to, min(OUT * s.count, OW - ox), FACTOR(bias, o + j), OFFSET(bias, o + j), accumulate, slope);
          }
      }
    }
  }
}

/* Tiles [t0, t0 + length) of all; `pitch` is room for more. */
#define TILES int batch, int planes, int H, int W, int OH, int OW, int ph, int pw, int t0, int length, int pitch
#define STRIPS(begin, ph, pw)                                                                             \
  const int across = (OW + OUT - 1) / OUT, down = (OH + OUT - 1) / OUT, begin = get_global_id(0) * NR;    \
  Strip strips[NR];                                                                                       \
  const int count = cut(strips, t0 + begin, t0 + length, across, down, ph, pw);                           \
  Rows rows[PIPELINE] __attribute__((aligned(64)));                                                       \
  for (int i = 0; i < PIPELINE * SIDE * OUT * SLOTS; i++) rows[0][0][0][i] = 0.0f

SINGLE void input(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(float, made), TILES) {
  LOCATE(x); LOCATE(made);
  STRIPS(begin, ph, pw);
  const int g = get_global_id(2), panel = get_global_id(1), panels = get_global_size(1), plane = H * W;
  const ulong group = (ulong)g * planes * plane, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * planes * plane;
  float columns[V][POINTS * (NR + V) + V] __attribute__((aligned(64)));
  for (int i = 0; i < V * (POINTS * (NR + V) + V); i++) columns[0][i] = 0.0f;
  for (int c = 0; c < NR; c += V) {
    const ulong first = (ulong)(panel * NR + c) * plane;
    const int valid = clamp(planes - panel * NR - c, 0, V);
    transform(x + group + first, x_stride, readable - first, strips, count, H, W, SIDE, valid, rows, columns);
    for (int p = 0; p < POINTS; p++) {
      global float* to = made + (g * POINTS + p) * STEP(panels * pitch * NR) + (panel * pitch + begin) * NR + c;
      for (int t = 0; t < NR; t += V) {
        vec block[V];
#pragma unroll
        for (int i = 0; i < V; i++) block[i] = PRIVATE(columns[i] + p * (NR + V) + t);
        transpose(block);
#pragma unroll
        for (int i = 0; i < V; i++) GLOBAL(to + (t + i) * NR) = block[i];
      }
    }
  }
}

SINGLE void gradient(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, made), TILES) {
  LOCATE(dy); LOCATE(made);
  STRIPS(begin, 0, 0);
  const int g = get_global_id(2), o = get_global_id(1) * BURST, plane = OH * OW, valid = min(BURST, planes - o);
  const ulong first = ((ulong)g * planes + o) * plane, readable = (batch - 1) * dy_stride + (ulong)get_global_size(2) * planes * plane;
  float columns[BURST][POINTS * (NR + V) + V] __attribute__((aligned(64)));
  transform(dy + first, dy_stride, readable - first, strips, count, OH, OW, OUT, valid, rows, columns);
  for (int p = 0; p < POINTS; p++)
    for (int i = 0; i < valid; i++)
#pragma unroll
      for (int j = 0; j < NV; j++)
        GLOBAL(made + (g * POINTS + p) * STEP(planes * pitch) + (o + i) * pitch + begin + j * V) = PRIVATE(columns[i] + p * (NR + V) + j * V);
}

SINGLE void product(OPERAND_RESTRICT(const float, right), OPERAND_RESTRICT(const float, left), OPERAND_RESTRICT(float, sums), int channels, int outputs,
                    int length, int pitch, int block, int accumulate) {
  LOCATE(right); LOCATE(left); LOCATE(sums);
  const int at = get_global_id(2) * POINTS + get_global_id(0), panels = (channels + NR - 1) / NR;
  const int first = get_global_id(1) * block, last = min(outputs, first + block);
  float tile[MR * NR] __attribute__((aligned(64)));
  right += at * STEP(panels * pitch * NR);
  left += at * STEP(outputs * pitch);
  sums += at * STEP(outputs * panels * NR);
  for (int k0 = 0; k0 < length; k0 += KC) {
    const int depth = min(KC, length - k0), add = accumulate || k0;
    for (int c = 0; c < panels; c++) {
      global const float* b = right + (c * pitch + k0) * NR;
      for (int o = first; o < last; o += MR) {
        const int rows = min(MR, last - o);
        global const float* a[MR]; /* behind the last row its copies */
#pragma unroll
        for (int i = 0; i < MR; i++) a[i] = left + (o + min(i, rows - 1)) * pitch + k0;
        vec acc[MR][NV];
        MULTIPLY_AT(GLOBAL, acc, a[i][k], b, NR, depth);
        spill(acc, tile);
        for (int i = 0; i < rows; i++) finish(tile + i * NR, sums + ((o + i) * panels + c) * NR, NR, 1.0f, 0.0f, add, 1.0f);
      }
    }
  }
}

SINGLE void window(OPERAND_RESTRICT(const float, sums), OPERAND_RESTRICT(float, dw), int channels, int outputs, int accumulate) {
  LOCATE(sums); LOCATE(dw);
  const int g = get_global_id(2), o = get_global_id(1), width = (channels + NR - 1) / NR * NR;
  const ulong step = STEP(outputs * width);
  float taps[9][V] __attribute__((aligned(64)));
  sums += g * POINTS * step + o * width;
  dw += ((ulong)g * outputs + o) * channels * 9;
  for (int c = 0; c < channels; c += V, sums += V, dw += 9 * V) {
    vec half_way[3][SIDE];
#pragma unroll
    for (int x = 0; x < SIDE; x++) {
      vec m[SIDE], t[3];
#pragma unroll
      for (int y = 0; y < SIDE; y++) m[y] = GLOBAL(sums + (y * SIDE + x) * step);
      TRANSFORM_WINDOW(t, m);
#pragma unroll
      for (int y = 0; y < 3; y++) half_way[y][x] = t[y];
    }
#pragma unroll
    for (int y = 0; y < 3; y++) {
      vec t[3];
      TRANSFORM_WINDOW(t, half_way[y]);
#pragma unroll
      for (int x = 0; x < 3; x++) PRIVATE(taps[y * 3 + x]) = t[x];
    }
    for (int i = 0; i < min(V, channels - c); i++)
#pragma unroll
      for (int t = 0; t < 9; t++) dw[i * 9 + t] = taps[t][i] + (accumulate ? dw[i * 9 + t] : 0.0f);
  }
}
