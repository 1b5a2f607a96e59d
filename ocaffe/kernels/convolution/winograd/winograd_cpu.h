/* The transforms of Winograd's F(4x4, 3x3), each along one axis, and loads and stores of tiles of 6 x 6 and 4 x 4 pixels as vectors of
   neighbouring tiles (winograd_cpu.cl). */
#ifndef OCAFFE_WINOGRAD_CPU_H
#define OCAFFE_WINOGRAD_CPU_H

#define SIDE 6
#define POINTS 36
#define OUT 4
#define BURST 8    /* channels or outputs that are transformed before they are written, because memory takes long runs faster (also in ops/winograd_cpu.py) */
#define RUN 64     /* channels whose filters are written together, for the same reason */
#define PIPELINE 2 /* channels or outputs per pipeline step: the next step should not load values in other vectors right after their stores */

/* The distance from one p to the next. It is not a power of two, which would map all of them to one cache set. */
#define STEP(count) ((ulong)(count) + V)

/* The points of interpolation are 0, +-sqrt(1/2), +-sqrt(2) and infinity, as in winograd_gpu.cl. With the usual 0, +-1, +-2 errors are
   three to six times as large, with as much work. Odd terms carry the odd power of their point; POINT_A^2 = 1/2, POINT_B^2 = 2. */
#define POINT_A 0.70710678f
#define POINT_B 1.41421356f
#define CUBE_A 0.35355339f
#define CUBE_B 2.82842712f
#define WEIGHT_A (-2.0f / 3) /* 1 / (2 A^2 (A^2 - B^2)) */
#define WEIGHT_B (1.0f / 6)  /* 1 / (2 B^2 (B^2 - A^2)) */

/* Six values through B', the transform of the input. */
#define TRANSFORM_INPUT(to, d)                                                                                    \
  do {                                                                                                            \
    const vec a_ = d[4] - 2.0f * d[2], b_ = d[3] - 2.0f * d[1], c_ = d[4] - 0.5f * d[2], e_ = d[3] - 0.5f * d[1]; \
    to[0] = d[0] - 2.5f * d[2] + d[4];                                                                            \
    to[1] = a_ + POINT_A * b_;                                                                                    \
    to[2] = a_ - POINT_A * b_;                                                                                    \
    to[3] = c_ + POINT_B * e_;                                                                                    \
    to[4] = c_ - POINT_B * e_;                                                                                    \
    to[5] = d[1] - 2.5f * d[3] + d[5];                                                                            \
  } while (0)

/* Six values through A', the transform of the products: four. */
#define TRANSFORM_OUTPUT(to, m)                                                       \
  do {                                                                                \
    const vec s_ = m[1] + m[2], d_ = m[1] - m[2], t_ = m[3] + m[4], e_ = m[3] - m[4]; \
    to[0] = m[0] + s_ + t_;                                                           \
    to[1] = POINT_A * d_ + POINT_B * e_;                                              \
    to[2] = 0.5f * s_ + 2.0f * t_;                                                    \
    to[3] = CUBE_A * d_ + (CUBE_B * e_ + m[5]);                                       \
  } while (0)

/* Four values through A, the transform of the outputs' gradient: six. */
#define TRANSFORM_GRADIENT(to, d)                                                                                 \
  do {                                                                                                            \
    const vec a_ = d[0] + 0.5f * d[2], b_ = d[1] + 0.5f * d[3], c_ = d[0] + 2.0f * d[2], e_ = d[1] + 2.0f * d[3]; \
    to[0] = d[0];                                                                                                 \
    to[1] = a_ + POINT_A * b_;                                                                                    \
    to[2] = a_ - POINT_A * b_;                                                                                    \
    to[3] = c_ + POINT_B * e_;                                                                                    \
    to[4] = c_ - POINT_B * e_;                                                                                    \
    to[5] = d[3];                                                                                                 \
  } while (0)

/* Six values through G', the transform to the filters' gradient: three. */
#define TRANSFORM_WINDOW(to, m)                                                      \
  do {                                                                               \
    const vec s_ = WEIGHT_A * (m[1] + m[2]), t_ = WEIGHT_B * (m[3] + m[4]);          \
    to[0] = m[0] + s_ + t_;                                                          \
    to[1] = WEIGHT_A * POINT_A * (m[1] - m[2]) + WEIGHT_B * POINT_B * (m[3] - m[4]); \
    to[2] = 0.5f * s_ + 2.0f * t_ + m[5];                                            \
  } while (0)

/* Three values through G, the transform of the filters: six. */
#define TRANSFORM_FILTER(to, g)                                                           \
  do {                                                                                    \
    const vec s_ = WEIGHT_A * (g[0] + 0.5f * g[2]), t_ = WEIGHT_B * (g[0] + 2.0f * g[2]); \
    to[0] = g[0];                                                                         \
    to[1] = s_ + WEIGHT_A * POINT_A * g[1];                                               \
    to[2] = s_ - WEIGHT_A * POINT_A * g[1];                                               \
    to[3] = t_ + WEIGHT_B * POINT_B * g[1];                                               \
    to[4] = t_ - WEIGHT_B * POINT_B * g[1];                                               \
    to[5] = g[2];                                                                         \
  } while (0)

/* Up to V neighbouring tiles of one image, from tile `first` of their NR on. x, y: the first pixel that they read, which may be outside of
   the image; slot: where they begin in `Rows`. */
typedef struct { int n, y, x, count, first, slot; } OWN(Strip);

/* The pixels of one channel that the strips of NR tiles read, transformed vertically. Each row is sorted by the column modulo 4, so that
   neighbouring tiles are contiguous. A strip takes slots for its tiles and for the beginning of the next tile, in whole vectors of pixels. */
#define SLOTS (4 * NR + V)
typedef float OWN(Rows)[SIDE][OUT][SLOTS];

/* Cut tiles [t, end), at most NR, into strips. Return their number. */
inline int OWN(cut)(Strip* strips, int t, int end, int across, int down, int ph, int pw) {
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

/* Prefetch the pixels of a strip. In the next channel they are a page apart, so hardware prefetchers do not predict them. */
inline void OWN(expect)(global const float* x, ulong at, ulong readable, Strip s, int H, int W) {
  const int length = OUT * s.count + 2;
  for (int r = max(0, -s.y); r < min(SIDE, H - s.y); r++) {
    const ulong from = at + (s.y + r) * W + max(0, s.x);
    for (int j = 0; j < length; j += 16) PREFETCH(x + min(from + j, readable - 1), 3);
  }
}

/* Transform one strip of a channel vertically. Its pixel (0, 0) is at x[at]; `readable` floats may be read from x. A tile reads `side`
   pixels each way: 6 of an input, 4 of an output's gradient. */
inline void OWN(transform_down)(global const float* x, ulong at, ulong readable, Strip s, int H, int W, int side, Rows rows) {
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

/* Transform horizontally: the 36 values of each tile, to[p * (NR + V) + tile]. Writes up to V - 1 floats beyond a row's end. */
inline void OWN(transform_across)(Rows rows, Strip s, int side, float* to) {
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

/* Transform `planes` channels, from x on, of the strips of a panel: columns[channel][p * (NR + V) + tile]. */
inline void OWN(transform)(global const float* x, ulong x_stride, ulong readable, const Strip* strips, int count, int H, int W, int side, int planes,
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

/* Interleave the V tiles' first, second, ... pixels to 4 V neighbouring pixels. */
inline void OWN(interleave)(const vec p[OUT], float* to) {
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

/* Compute the 4 x 4 outputs of V tiles, whose 36 products are `pitch` apart, as rows of 4 V pixels. */
inline void OWN(transform_back)(global const float* from, ulong pitch, float* to) {
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

#endif
