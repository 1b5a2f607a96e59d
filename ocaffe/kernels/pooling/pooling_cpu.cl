/* MAX and AVE pooling over windows in H x W for CPUs. Defines: see pooling.h.
 *
 * Work-items: (parts of a plane, planes, samples), one to a group; each owns `rows` neighbouring rows of the result.
 *
 * Forward processes tiles of TILE outputs of one row, in the two steps of line_cpu.h, so that strided access stays in the first-level cache.
 * Backward: MAX adds each output to its pixel, in the rows of the work-item; AVE sums outputs over rows into a line, then spreads it.
 */
#include "line_cpu.h"
#include "pooling.h"

#define TILE 64
#define TOGETHER 4 /* rows per step: a load that overlaps recent stores in other vectors would stall until they reach the cache */
#define LINE ((TILE - 1) * SW + KW + 2 * V * SW) /* with room for whole vectors beyond the end */

/* Every SW-th element from p on. */
#if SW == 1
#define COLUMNS(type, p) vload8(0, p)
#elif SW == 2
#define COLUMNS(type, p) vload16(0, p).even
#else
#define COLUMNS(type, p) \
  (type)((p)[0], (p)[SW], (p)[2 * SW], (p)[3 * SW], (p)[4 * SW], (p)[5 * SW], (p)[6 * SW], (p)[7 * SW])
#endif

#define GEOMETRY const int rows, const int H, const int W, const int OH, const int OW

/* EXTENT of eight windows along W. All operands are vectors, because Oclgrind 21.10 applies a scalar to one lane only. */
#if PADDING_COUNTS
#define EXTENTS(first) (min((first) + KW, (int8)(W + PW)) - (first))
#else
#define EXTENTS(first) (min((first) + KW, (int8)(W)) - max(first, (int8)(0)))
#endif

#if METHOD == MAX
#define NONE 0x1000000 /* larger than any position */

/* Windows of two columns that do not overlap, all inside the image: `n` outputs are the larger ones of the even and the odd columns. */
#define PAIRS(n, F, vload_both)                                   \
  for (int row = first; row < end; row++)                         \
    for (int o = 0; o < OW; o += n) {                             \
      o = min(o, OW - n);                                         \
      F even = -FLT_MAX, odd = -FLT_MAX;                          \
      for (int a = 0; a < KH; a++) {                              \
        const F e = vload_both(0, x + (row * SH + a) * W + 2 * o).even; \
        const F d = vload_both(0, x + (row * SH + a) * W + 2 * o).odd;  \
        even = e > even ? e : even;                               \
        odd = d > odd ? d : odd;                                  \
      }                                                           \
      vstore##n(odd > even ? odd : even, 0, y + row * OW + o);    \
    }

void OWN(forward_rows)(global const float* x, global float* y, global INDEX* index, const bool save, const int first, const int end, const int H,
                  const int W, const int OH, const int OW) {
#if KW == 2 && SW == 2 && PW == 0 && PH == 0
  if (!save && OW >= 4 && 2 * OW <= W && (end - 1) * SH + KH <= H) {
    if (OW >= 8) PAIRS(8, float8, vload16)
    else PAIRS(4, float4, vload8)
    return;
  }
#endif
  float lines[TOGETHER][LINE];
  int all_places[TOGETHER][LINE];
  for (int row0 = first; row0 < end; row0 += TOGETHER)
    for (int t0 = 0; t0 < OW; t0 += TILE) {
      const int outputs = min(TILE, OW - t0), span = (outputs - 1) * SW + KW, c0 = t0 * SW - PW;
      const int left = max(0, -c0), right = max(left, min(span, W - c0));
      for (int row = row0; row < min(end, row0 + TOGETHER); row++) {
        const int y0 = row * SH - PH, top = max(0, -y0), bottom = min(KH, H - y0);
        float* line = lines[row - row0];
        int* places = all_places[row - row0];
        global const float* source = x + (long)y0 * W + c0;
        FILL(line, float8, -FLT_MAX, span + V * SW)
        if (save) { FILL(places, int8, NONE, span + V * SW) }
#define REDUCE(n, F, I)                                            \
  F best = -FLT_MAX;                                               \
  I place = NONE;                                                  \
  for (int a = top; a < bottom; a++) {                             \
    const F v = vload##n(0, source + a * W + j);                   \
    place = v > best ? a * KW : place;                             \
    best = v > best ? v : best;                                    \
  }                                                                \
  vstore##n(best, 0, line + j);                                    \
  if (save) vstore##n(place, 0, places + j);
        ALL_COLUMNS
      }
      for (int row = row0; row < min(end, row0 + TOGETHER); row++) {
        const float* line = lines[row - row0];
        const int* places = all_places[row - row0];
        for (int o = 0; o < outputs; o += V) {
          o = min(o, max(0, outputs - V));
          const long at = (long)row * OW + t0 + o;
          float8 best = -FLT_MAX;
          int8 place = NONE;
          for (int b = 0; b < KW; b++) {
            const float8 v = COLUMNS(float8, line + o * SW + b);
            if (save) {
              const int8 p = COLUMNS(int8, places + o * SW + b) + b;
              const int8 more = (v > best) | ((v == best) & (p < place)); /* of equal values the first, row by row */
              place = more ? p : place;
            }
            best = v > best ? v : best;
          }
          STORE(float, best, y + at, outputs - o)
          if (save) {
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
            const CAT(INDEX, 8) small = CAT(CAT(convert_, INDEX), 8)(place < NONE ? place : -1);
            STORE(INDEX, small, index + at, outputs - o)
          }
        }
      }
    }
}

KERNEL ENTRY(forward)(OPERAND(const float, x), OPERAND(float, y), GEOMETRY) {
  LOCATE(x);
  LOCATE(y);
  PLANE(x, H, W);
  PLANE(y, OH, OW);
  OWN_ROWS(OH);
  forward_rows(x, y, 0, false, first, end, H, W, OH, OW);
}

KERNEL ENTRY(forward_index)(OPERAND(const float, x), OPERAND(float, y), OPERAND(INDEX, index), GEOMETRY) {
  LOCATE(x);
  LOCATE(y);
  LOCATE(index);
  PLANE(x, H, W);
  PLANE(y, OH, OW);
  PLANE(index, OH, OW);
  OWN_ROWS(OH);
  forward_rows(x, y, index, true, first, end, H, W, OH, OW);
}

KERNEL ENTRY(backward)(OPERAND(const float, dy), OPERAND(const INDEX, index), OPERAND(float, dx), GEOMETRY, const int accumulate) {
  LOCATE(dy);
  LOCATE(index);
  LOCATE(dx);
  PLANE(dy, OH, OW);
  PLANE(index, OH, OW);
  PLANE(dx, H, W);
  OWN_ROWS(H);
  if (!accumulate) {
    for (int i = first * W; i < end * W; i++) dx[i] = 0;
  }
  for (int row = FIRST_OUT(first, KH, SH, PH); row <= LAST_OUT(end - 1, SH, PH, OH); row++) {
    for (int column = 0; column < OW; column++) {
      const int place = index[row * OW + column];
      const int r = row * SH - PH + place / KW, c = column * SW - PW + place % KW;
      if (place < KH * KW && r >= first && r < end) dx[r * W + c] += dy[row * OW + column];
    }
  }
}
#endif

#if METHOD == AVE
#define BEFORE ((KW - 1) / SW) /* outputs before q whose windows contain column q * SW */

KERNEL ENTRY(forward)(OPERAND(const float, x), OPERAND(float, y), GEOMETRY) {
  LOCATE(x);
  LOCATE(y);
  PLANE(x, H, W);
  PLANE(y, OH, OW);
  OWN_ROWS(OH);
  float line[LINE];
  for (int row = first; row < end; row++) {
    const int y0 = row * SH - PH, top = max(0, -y0), bottom = min(KH, H - y0);
    for (int t0 = 0; t0 < OW; t0 += TILE) {
      const int outputs = min(TILE, OW - t0), span = (outputs - 1) * SW + KW, c0 = t0 * SW - PW;
      const int left = max(0, -c0), right = max(left, min(span, W - c0));
      global const float* source = x + (long)y0 * W + c0;
      FILL(line, float8, 0, span + V * SW)
#define REDUCE(n, F, I)                                                       \
  F sum = 0;                                                                  \
  for (int a = top; a < bottom; a++) sum += vload##n(0, source + a * W + j);  \
  vstore##n(sum, 0, line + j);
      ALL_COLUMNS
      for (int o = 0; o < outputs; o += V) {
        o = min(o, max(0, outputs - V));
        const int8 x0 = (t0 + o + (int8)(0, 1, 2, 3, 4, 5, 6, 7)) * SW - PW;
        float8 sum = 0;
        for (int b = 0; b < KW; b++) sum += COLUMNS(float8, line + o * SW + b);
        sum /= convert_float8(EXTENT(y0, KH, PH, H) * EXTENTS(x0));
        STORE(float, sum, y + (long)row * OW + t0 + o, outputs - o)
      }
    }
  }
}

KERNEL ENTRY(backward)(OPERAND(const float, dy), OPERAND(float, dx), GEOMETRY, const int accumulate) {
  LOCATE(dy);
  LOCATE(dx);
  PLANE(dy, OH, OW);
  PLANE(dx, H, W);
  OWN_ROWS(H);
  float padded[BEFORE + TILE + BEFORE + 2 * V], line[LINE];
  float* sums = padded + BEFORE;
  for (int o = -BEFORE; o < 0; o++) sums[o] = 0;
  for (int row = first; row < end; row++) {
    global float* target = dx + (long)row * W;
    if (!accumulate) {
      for (int j = 0; j < W; j++) target[j] = 0;
    }
    for (int t0 = 0; t0 < OW; t0 += TILE) {
      const int outputs = min(TILE, OW - t0), span = (outputs - 1) * SW + KW, c0 = t0 * SW - PW;
      const int left = max(0, -c0), right = min(span, W - c0);
      for (int o = 0; o < outputs + BEFORE + V; o++) sums[o] = 0;
      for (int r = FIRST_OUT(row, KH, SH, PH); r <= LAST_OUT(row, SH, PH, OH); r++) {
        const float share = 1.0f / EXTENT(r * SH - PH, KH, PH, H);
        global const float* source = dy + (long)r * OW + t0;
        int o = 0;
        for (; o + V <= outputs; o += V) vstore8(vload8(0, sums + o) + vload8(0, source + o) * share, 0, sums + o);
        for (; o < outputs; o++) sums[o] += source[o] * share;
      }
      for (int o = 0; o < outputs; o += V) {
        const int8 x0 = (t0 + o + (int8)(0, 1, 2, 3, 4, 5, 6, 7)) * SW - PW;
        vstore8(vload8(0, sums + o) / convert_float8(max(EXTENTS(x0), (int8)(1))), 0, sums + o);
      }
      /* Columns q * SW + phase of the line receive the outputs q, q - 1, ... whose windows contain them. */
      for (int q = 0; q * SW < span; q += V) {
        float8 v[SW];
        for (int phase = 0; phase < SW; phase++) {
          v[phase] = 0;
          for (int b = phase; b < KW; b += SW) v[phase] += vload8(0, sums + q - b / SW);
        }
#if SW == 1
        vstore8(v[0], 0, line + q);
#elif SW == 2
        vstore16((float16)(v[0].s0, v[1].s0, v[0].s1, v[1].s1, v[0].s2, v[1].s2, v[0].s3, v[1].s3, v[0].s4, v[1].s4, v[0].s5, v[1].s5,
                           v[0].s6, v[1].s6, v[0].s7, v[1].s7), 0, line + q * SW);
#else
        for (int phase = 0; phase < SW; phase++) {
          float part[V];
          vstore8(v[phase], 0, part);
          for (int s = 0; s < V; s++) line[(q + s) * SW + phase] = part[s];
        }
#endif
      }
      int j = left;
      for (; j + V <= right; j += V) vstore8(vload8(0, target + c0 + j) + vload8(0, line + j), 0, target + c0 + j);
      for (; j < right; j++) target[c0 + j] += line[j];
    }
  }
}
#endif
