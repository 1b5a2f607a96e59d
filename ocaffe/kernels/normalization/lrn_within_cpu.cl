/* LRN within a channel for CPUs; for the formulas see lrn_within.cl.
 *
 * SIZE      side of the window, odd
 * BETA_075  1: beta is 0.75, s^-beta is computed with square roots
 *
 * Work-items: (parts of a plane, planes, samples), one to a group; each owns `rows` neighbouring rows. Tiles of a row are processed in the two
 * steps of line_cpu.h.
 */
#include "common.h"
#include "line_cpu.h"

#ifndef SIZE
#define SIZE 3
#endif
#ifndef BETA_075
#define BETA_075 1
#endif
#define HALF (SIZE / 2)
#define TILE 64
#define LINE (TILE + SIZE + 3 * V)

float8 OWN(power)(const float8 s, const float beta) {
#if BETA_075
  const float8 r = 1 / sqrt(s);
  return r * sqrt(r);
#else
  return powr(s, (float8)(-beta));
#endif
}

/* Sum over SIZE rows around `row`, for the columns that the windows of outputs t0 to t0 + outputs cover. */
void OWN(squares_of_rows)(global const float* x, float* line, const int row, const int t0, const int outputs, const int H, const int W) {
  const int top = max(-HALF, -row), bottom = min(HALF, H - 1 - row), c0 = t0 - HALF, span = outputs + SIZE - 1;
  const int left = max(0, -c0), right = max(left, min(span, W - c0));
  global const float* source = x + row * W + c0;
  FILL(line, float8, 0, span + V)
#define REDUCE(n, F, I)                        \
  F sum = 0;                                   \
  for (int a = top; a <= bottom; a++) {        \
    const F v = vload##n(0, source + a * W + j); \
    sum += v * v;                              \
  }                                            \
  vstore##n(sum, 0, line + j);
  ALL_COLUMNS
#undef REDUCE
}

void OWN(sums_of_rows)(global const float* x, float* line, const int row, const int t0, const int outputs, const int H, const int W) {
  const int top = max(-HALF, -row), bottom = min(HALF, H - 1 - row), c0 = t0 - HALF, span = outputs + SIZE - 1;
  const int left = max(0, -c0), right = max(left, min(span, W - c0));
  global const float* source = x + row * W + c0;
  FILL(line, float8, 0, span + V)
#define REDUCE(n, F, I)                                                        \
  F sum = 0;                                                                   \
  for (int a = top; a <= bottom; a++) sum += vload##n(0, source + a * W + j);  \
  vstore##n(sum, 0, line + j);
  ALL_COLUMNS
#undef REDUCE
}

float8 OWN(window)(const float* line) {
  float8 sum = 0;
  for (int b = 0; b < SIZE; b++) sum += vload8(0, line + b);
  return sum;
}

/* Load the values at p, of which `count` exist. */
float8 OWN(load)(global const float* p, const int count) {
  if (count >= V) return vload8(0, p);
  float part[V];
  for (int s = 0; s < V; s++) part[s] = s < count ? p[s] : 0;
  return vload8(0, part);
}

#define EACH_TILE                                  \
  for (int row = first; row < end; row++)          \
    for (int t0 = 0; t0 < W; t0 += TILE)

/* The last vector overlaps the one before. That is safe because the kernels do not read the elements that they write. */
#define EACH_VECTOR                                                    \
  for (int o = 0; o < outputs; o += V) {                               \
    o = min(o, max(0, outputs - V));                                   \
    const int at = row * W + t0 + o, count = outputs - o;

KERNEL ENTRY(forward)(OPERAND(const float, x), OPERAND(float, y), const int rows, const int H, const int W, const float share, const float beta) {
  LOCATE(x);
  LOCATE(y);
  PLANE(x, H, W);
  PLANE(y, H, W);
  OWN_ROWS(H);
  float line[LINE];
  EACH_TILE {
    const int outputs = min(TILE, W - t0);
    squares_of_rows(x, line, row, t0, outputs, H, W);
    EACH_VECTOR
      const float8 v = load(x + at, count) * power(1 + share * window(line + o), beta);
      STORE(float, v, y + at, count)
    }
  }
}

KERNEL ENTRY(terms)(OPERAND(const float, x), OPERAND(const float, dy), OPERAND(float, terms), const int rows, const int H, const int W,
             const float share, const float beta) {
  LOCATE(x);
  LOCATE(dy);
  LOCATE(terms);
  PLANE(x, H, W);
  PLANE(dy, H, W);
  PLANE(terms, H, W);
  OWN_ROWS(H);
  float line[LINE];
  EACH_TILE {
    const int outputs = min(TILE, W - t0);
    squares_of_rows(x, line, row, t0, outputs, H, W);
    EACH_VECTOR
      const float8 s = 1 + share * window(line + o);
      const float8 v = load(dy + at, count) * load(x + at, count) * power(s, beta) / s;
      STORE(float, v, terms + at, count)
    }
  }
}

KERNEL ENTRY(backward)(OPERAND(const float, x), OPERAND(const float, dy), OPERAND(const float, terms), OPERAND(float, dx), const int rows,
                const int H, const int W, const float share, const float beta, const int accumulate) {
  LOCATE(x);
  LOCATE(dy);
  LOCATE(terms);
  LOCATE(dx);
  PLANE(x, H, W);
  PLANE(dy, H, W);
  PLANE(terms, H, W);
  PLANE(dx, H, W);
  OWN_ROWS(H);
  float line[LINE], sums[LINE];
  EACH_TILE {
    const int outputs = min(TILE, W - t0);
    squares_of_rows(x, line, row, t0, outputs, H, W);
    sums_of_rows(terms, sums, row, t0, outputs, H, W);
    for (int o = 0; o < outputs; o += V) { /* vectors must not overlap here, because backward accumulates */
      const int at = row * W + t0 + o, count = outputs - o;
      float8 v = load(dy + at, count) * power(1 + share * window(line + o), beta);
      v -= 2 * share * beta * load(x + at, count) * window(sums + o);
      if (accumulate) v += load(dx + at, count);
      STORE(float, v, dx + at, count)
    }
  }
}
