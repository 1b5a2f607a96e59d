/* Convolution with 3 x 3 windows and stride 1 by Winograd's F(OUT x OUT, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural
   Networks", 2015): the transforms before and after POINTS matrix products (gemm_gpu.cl). With OUT 4, 36 multiplications make 4 x 4 outputs;
   the direct product takes 144.

   operands   tiles of the image -> POINTS matrices [channel][tile]; filters -> POINTS matrices [channel][output]
   output     POINTS products [output][tile] -> tiles of the result, with the epilogue of the direct convolution (bias, accumulation, ReLU or
              fused ReLU backward) and channel reductions (channel_reduction.h)
   gradients  (OUT 4) tiles of the image -> 36 matrices [channel][tile]; tiles of the result's gradient -> 36 matrices [output][tile]
   window     (OUT 4) the sums over splits of 36 products [output][channel] -> gradient of the filters

   OUT   outputs of a tile per axis (docs/kernel-log.md)
     4   interpolation at 0, +-sqrt(1/2), +-sqrt(2) and infinity; 36 / 16 products per output. The error is a third to a sixth of that of
         the usual points 0, +-1, +-2
     3   at +-13/32, +-5/4 and infinity; 25 / 9 products per output. Half the error of 4, about that of the direct product
     2   at 0, +-1 and infinity; 16 / 4 products per output. A quarter of the error of 4

   Tile t of a launch is tile `first` + t of all samples' tiles, row by row. `count` of them exist; the matrices are padded with zeros to
   `pitch` tiles.
   Work-item (x, y, z): a tile, a plane, a group. In `operands` the first `filters` values of x are outputs, whose filters of channel y are
   transformed. `filters` is a multiple of the work-group's size, or 0 if the filters are transformed already. In `gradients` y counts
   channels, then outputs; in `window` x are channels, y outputs. */
#include "common.h"
#include "epilogue.h"
#include "channel_reduction.h"
#include "tile_gpu.h"

#ifndef OUT
#define OUT 4
#endif

#define GROUP 64 /* the work-group of `output` is GROUP x LINES */
#define LINES 2
#define SIDE (OUT + 2)
#define POINTS (SIDE * SIDE)
#define LAST (SIDE - 1) /* the point infinity */

/* Outputs: the outputs of a row as one vector. WHOLE(bits): whether a vector is aligned at all multiples of `bits`, an OR of sizes and offsets. */
#define WHOLE(bits) (OUT % 2 == 0 && ((bits) & (OUT - 1)) == 0)
#if OUT == 4
typedef float4 Outputs;
#define put_row put4
#define GET_ROW GET4
INLINE void spread(Outputs v, float to[OUT]) { to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w; }
INLINE Outputs gathered(const float v[OUT]) { return (Outputs)(v[0], v[1], v[2], v[3]); }
#elif OUT == 2
typedef float2 Outputs;
#define put_row put2
#define GET_ROW GET2
INLINE void spread(Outputs v, float to[OUT]) { to[0] = v.x, to[1] = v.y; }
INLINE Outputs gathered(const float v[OUT]) { return (Outputs)(v[0], v[1]); }
#else /* compiled but not used, since WHOLE is 0 */
typedef float Outputs;
#define put_row put
#define GET_ROW GET
INLINE void spread(Outputs v, float to[OUT]) { to[0] = v; }
INLINE Outputs gathered(const float v[OUT]) { return v[0]; }
#endif

/* One axis of each transform. */
#if OUT == 2
INLINE void input_axis(const float d[SIDE], float to[SIDE]) {
  to[0] = d[0] - d[2];
  to[1] = d[2] + d[1];
  to[2] = d[2] - d[1];
  to[3] = d[3] - d[1];
}

INLINE void filter_axis(const float g[3], float to[SIDE]) {
  const float even = 0.5f * (g[0] + g[2]), odd = 0.5f * g[1];
  to[0] = g[0];
  to[1] = even + odd;
  to[2] = even - odd;
  to[3] = g[2];
}

INLINE void output_axis(const float m[SIDE], float to[OUT]) {
  to[0] = m[0] + m[1] + m[2];
  to[1] = m[1] - m[2] + m[3];
}

#else
#if OUT == 4
#define ZERO 1 /* number of points before the two pairs +-A, +-B */
#define A 0.70710678f
#define B 1.41421356f
#define A2 0.5f
#define B2 2.0f
#define ODD_A A
#define ODD_B B
#define WEIGHT_A (-2.0f / 3) /* 1 / (2 A2 (A2 - B2)) */
#define WEIGHT_B (1.0f / 6)  /* 1 / (2 B2 (B2 - A2)) */
#else
#define ZERO 0
#define A 0.40625f
#define B 1.25f
#define A2 (A * A)
#define B2 (B * B)
#define ODD_A (1.0f / A)
#define ODD_B (1.0f / B)
#define WEIGHT_A (0.5f / (A2 - B2))
#define WEIGHT_B (0.5f / (B2 - A2))
#endif

/* The input transform. to[point A] is the polynomial that is zero at all other points, with d[i] in place of x^i: x (x + A) (x^2 - B2) with
   OUT 4, (x + A) (x^2 - B2) / A with OUT 3. */
INLINE void input_axis(const float d[SIDE], float to[SIDE]) {
  const float even_a = d[2 + 2 * ZERO] - B2 * d[2 * ZERO], odd_a = ODD_A * (d[3] - B2 * d[1]);
  const float even_b = d[2 + 2 * ZERO] - A2 * d[2 * ZERO], odd_b = ODD_B * (d[3] - A2 * d[1]);
#if ZERO
  to[0] = A2 * B2 * d[0] - (A2 + B2) * d[2] + d[4];
#endif
  to[ZERO] = even_a + odd_a;
  to[ZERO + 1] = even_a - odd_a;
  to[ZERO + 2] = even_b + odd_b;
  to[ZERO + 3] = even_b - odd_b;
  to[LAST] = A2 * B2 * d[ZERO] - (A2 + B2) * d[ZERO + 2] + d[ZERO + 4];
}

INLINE void filter_axis(const float g[3], float to[SIDE]) {
  const float even_a = WEIGHT_A * (g[0] + A2 * g[2]), odd_a = WEIGHT_A * A * g[1];
  const float even_b = WEIGHT_B * (g[0] + B2 * g[2]), odd_b = WEIGHT_B * B * g[1];
#if ZERO
  to[0] = g[0];
#endif
  to[ZERO] = even_a + odd_a;
  to[ZERO + 1] = even_a - odd_a;
  to[ZERO + 2] = even_b + odd_b;
  to[ZERO + 3] = even_b - odd_b;
  to[LAST] = g[2];
}

INLINE void output_axis(const float m[SIDE], float to[OUT]) {
  const float sum_a = m[ZERO] + m[ZERO + 1], difference_a = A * (m[ZERO] - m[ZERO + 1]);
  const float sum_b = m[ZERO + 2] + m[ZERO + 3], difference_b = B * (m[ZERO + 2] - m[ZERO + 3]);
  to[0] = sum_a + sum_b;
  to[1] = difference_a + difference_b;
  to[2] = A2 * sum_a + B2 * sum_b;
#if ZERO
  to[0] += m[0];
  to[3] = A2 * difference_a + B2 * difference_b;
#endif
  to[OUT - 1] += m[LAST];
}
#endif

#if OUT == 4
INLINE void gradient_axis(const float d[OUT], float to[SIDE]) {
  const float even_a = d[0] + A2 * d[2], odd_a = A * (d[1] + A2 * d[3]);
  const float even_b = d[0] + B2 * d[2], odd_b = B * (d[1] + B2 * d[3]);
  to[0] = d[0];
  to[1] = even_a + odd_a;
  to[2] = even_a - odd_a;
  to[3] = even_b + odd_b;
  to[4] = even_b - odd_b;
  to[5] = d[3];
}

INLINE void window_axis(const float m[SIDE], float to[3]) {
  const float sum_a = WEIGHT_A * (m[1] + m[2]), difference_a = WEIGHT_A * A * (m[1] - m[2]);
  const float sum_b = WEIGHT_B * (m[3] + m[4]), difference_b = WEIGHT_B * B * (m[3] - m[4]);
  to[0] = m[0] + sum_a + sum_b;
  to[1] = difference_a + difference_b;
  to[2] = A2 * sum_a + B2 * sum_b + m[5];
}
#endif

/* The place of a tile: its sample and its first output. */
typedef struct { int sample, y, x; } Place;

INLINE Place locate(int tile, int down, int across) {
  const Place place = {tile / across / down, tile / across % down * OUT, tile % across * OUT};
  return place;
}

/* Transform one filter, to places `step` apart from `to` on; `turned`: its taps in reverse order. */
INLINE void transform_filter(global const float* w, int turned, global float* to, ulong step) {
  float half_way[3][SIDE], g[3], u[SIDE];
#pragma unroll
  for (int r = 0; r < 3; ++r) {
#pragma unroll
    for (int i = 0; i < 3; ++i) g[i] = w[turned ? 8 - 3 * r - i : 3 * r + i];
    filter_axis(g, half_way[r]);
  }
#pragma unroll
  for (int i = 0; i < SIDE; ++i) {
#pragma unroll
    for (int r = 0; r < 3; ++r) g[r] = half_way[r][i];
    filter_axis(g, u);
#pragma unroll
    for (int r = 0; r < SIDE; ++r) to[(r * SIDE + i) * step] = u[r];
  }
}

/* Transform SIDE x SIDE pixels of the plane `x` from (y0, x0) on, with zeros outside of it. aligned: of each row all but the first and the
   last pixel are an aligned Outputs vector, if they exist. */
INLINE void transform_input(global const SOURCE_T* x, int exists, int y0, int x0, int h, int w, int aligned, global float* to, ulong step) {
  float half_way[SIDE][SIDE], d[SIDE], v[SIDE];
#pragma unroll
  for (int r = 0; r < SIDE; ++r) {
    const int inside = exists && (uint)(y0 + r) < (uint)h;
    global const SOURCE_T* row = x + (long)(y0 + r) * w + x0;
    if (aligned && x0 + SIDE - 1 <= w) {
      spread(inside ? GET_ROW(SOURCE_T, row + 1) : (Outputs)(0.0f), d + 1);
      d[0] = inside && x0 >= 0 ? GET(SOURCE_T, row) : 0.0f;
      d[SIDE - 1] = inside && x0 + SIDE - 1 < w ? GET(SOURCE_T, row + SIDE - 1) : 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < SIDE; ++i) d[i] = inside && (uint)(x0 + i) < (uint)w ? GET(SOURCE_T, row + i) : 0.0f;
    }
    input_axis(d, half_way[r]);
  }
#pragma unroll
  for (int i = 0; i < SIDE; ++i) {
#pragma unroll
    for (int r = 0; r < SIDE; ++r) d[r] = half_way[r][i];
    input_axis(d, v);
#pragma unroll
    for (int r = 0; r < SIDE; ++r) to[(r * SIDE + i) * step] = v[r];
  }
}

#if OUT == 4
/* Transform 4 x 4 gradients of the plane `dy` from (y0, x0) on. aligned: each row is an aligned Outputs vector. */
INLINE void transform_gradient(global const GIVEN_T* dy, int exists, int y0, int x0, int h, int w, int aligned, global float* to, ulong step) {
  float half_way[OUT][SIDE], d[OUT], v[SIDE];
#pragma unroll
  for (int r = 0; r < OUT; ++r) {
    const int inside = exists && y0 + r < h;
    global const GIVEN_T* row = dy + (long)(y0 + r) * w + x0;
    if (aligned) {
      spread(inside ? GET_ROW(GIVEN_T, row) : (Outputs)(0.0f), d);
    } else {
#pragma unroll
      for (int i = 0; i < OUT; ++i) d[i] = inside && x0 + i < w ? GET(GIVEN_T, row + i) : 0.0f;
    }
    gradient_axis(d, half_way[r]);
  }
#pragma unroll
  for (int i = 0; i < SIDE; ++i) {
#pragma unroll
    for (int r = 0; r < OUT; ++r) d[r] = half_way[r][i];
    gradient_axis(d, v);
#pragma unroll
    for (int r = 0; r < SIDE; ++r) to[(r * SIDE + i) * step] = v[r];
  }
}
#endif

kernel void operands(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const float, w), OPERAND_RESTRICT(float, tiles),
                     OPERAND_RESTRICT(float, matrices), int channels, int outputs, int groups, int ih, int iw, int ph, int pw, int down, int across,
                     int first, int count, int pitch, int filters, int output_step, int channel_step, int turned) {
  const int c = get_global_id(1), group = get_global_id(2), plane = group * channels + c;
  if (c >= channels) return;
  LOCATE(x), LOCATE(w), LOCATE(tiles), LOCATE(matrices);
  if (get_global_id(0) < filters) {
    const int o = get_global_id(0);
    if (o < outputs)
      transform_filter(w + (ulong)group * outputs * channels * 9 + (ulong)o * output_step + (ulong)c * channel_step, turned,
                       matrices + (ulong)plane * outputs + o, (ulong)groups * channels * outputs);
  } else {
    const int t = get_global_id(0) - filters;
    const Place at = locate(first + t, down, across);
    if (t < pitch)
      transform_input(x + at.sample * x_stride + (ulong)plane * ih * iw, t < count, at.y - ph, at.x - pw, ih, iw,
                      pw == 1 && WHOLE(iw | x_offset | x_stride), tiles + (ulong)plane * pitch + t, (ulong)groups * channels * pitch);
  }
}

#if OUT == 4
kernel void gradients(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const GIVEN_T, dy), OPERAND_RESTRICT(float, tiles),
                      OPERAND_RESTRICT(float, matrices), int channels, int outputs, int groups, int ih, int iw, int ph, int pw, int down, int across,
                      int first, int count, int pitch, int oh, int ow) {
  const int t = get_global_id(0), c = get_global_id(1), group = get_global_id(2);
  if (t >= pitch || c >= channels + outputs) return;
  LOCATE(x), LOCATE(dy), LOCATE(tiles), LOCATE(matrices);
  const Place at = locate(first + t, down, across);
  if (c < channels) {
    const int plane = group * channels + c;
    transform_input(x + at.sample * x_stride + (ulong)plane * ih * iw, t < count, at.y - ph, at.x - pw, ih, iw,
                    pw == 1 && WHOLE(iw | x_offset | x_stride), tiles + (ulong)plane * pitch + t, (ulong)groups * channels * pitch);
  } else {
    const int plane = group * outputs + c - channels;
    transform_gradient(dy + at.sample * dy_stride + (ulong)plane * oh * ow, t < count, at.y, at.x, oh, ow, WHOLE(ow | dy_offset | dy_stride),
                       matrices + (ulong)plane * pitch + t, (ulong)groups * outputs * pitch);
  }
}
#endif

#ifdef CHANNEL_REDUCTION
/* Return the sum of v over the GROUP work-items of a line, added as a tree; `line` is their local memory. */
INLINE float sum_of_line(local float* line, int item, float v) {
  barrier(CLK_LOCAL_MEM_FENCE);
  line[item] = v;
  for (int apart = GROUP / 2; apart > 0; apart /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < apart) line[item] += line[item + apart];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return line[0];
}
#endif

kernel void output(OPERAND_RESTRICT(const float, products), REDUCTION_OPERANDS SIGN OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(RESULT_T, y), int outputs,
                   int groups, int h, int w, int down, int across, int first, int count, int pitch, int has_bias, int accumulate, float slope) {
  const int group = get_global_id(2), exists = get_global_id(0) < count && get_global_id(1) < outputs;
#ifdef CHANNEL_REDUCTION
  local float lines[LINES][GROUP];
  const int t = min((int)get_global_id(0), count - 1), o = min((int)get_global_id(1), outputs - 1);
#else
  if (!exists) return;
  const int t = get_global_id(0), o = get_global_id(1);
#endif
  LOCATE(products), LOCATE(bias), LOCATE(y);
  LOCATE_SIGN;
  const ulong step = (ulong)groups * outputs * pitch;
  products += ((ulong)group * outputs + o) * pitch + t;
  float half_way[OUT][SIDE], m[SIDE], to[OUT];
#pragma unroll
  for (int i = 0; i < SIDE; ++i) {
#pragma unroll
    for (int r = 0; r < SIDE; ++r) m[r] = products[(r * SIDE + i) * step];
    output_axis(m, to);
#pragma unroll
    for (int r = 0; r < OUT; ++r) half_way[r][i] = to[r];
  }
  const Place place = locate(first + t, down, across);
  const int plane = group * outputs + o, element = (plane * h + place.y) * w + place.x;
  const int aligned = WHOLE(w | y_offset | y_stride) && SIGN_ALIGNED;
  const float factor = FACTOR(bias, plane), offset = OFFSET(bias, plane);
  global const SIGNS_T* signs = IF_FUSED_RELU(sign + place.sample * sign_stride, y);
  y += place.sample * y_stride + element;
  float v[OUT][OUT];
#pragma unroll
  for (int r = 0; r < OUT; ++r) {
    if (place.y + r >= h || !exists) continue;
    output_axis(half_way[r], v[r]);
#pragma unroll
    for (int i = 0; i < OUT; ++i) v[r][i] = v[r][i] * factor + offset;
    if (aligned) {
      spread(put_row(y + r * w, gathered(v[r]), accumulate, slope, signs, element + r * w), v[r]);
    } else {
#pragma unroll
      for (int i = 0; i < OUT; ++i)
        if (place.x + i < w) v[r][i] = put(y + r * w + i, v[r][i], accumulate, slope, signs, element + r * w + i);
    }
  }
#ifdef CHANNEL_REDUCTION
  const ChannelReduction reduction = REDUCTION_ARGUMENT;
  local float* line = lines[get_local_id(1)];
  const int item = get_local_id(0), down_here = exists ? min(h - place.y, OUT) : 0, across_here = min(w - place.x, OUT);
  const ulong part = plane * (reduction.apart / (groups * outputs)) + first / GROUP + get_group_id(0);
#if CHANNEL_REDUCTION != 2
  const float values = CHANNEL_REDUCTION == 1 ? sum_of_line(line, item, down_here * across_here) : 1.0f;
  float mean = 0.0f, total = 0.0f;
  for (int pass = 0; pass < (CHANNEL_REDUCTION == 1 ? 2 : 1); ++pass) {
    total = 0.0f;
#pragma unroll
    for (int r = 0; r < OUT; ++r) {
      if (r >= down_here) continue;
#pragma unroll
      for (int i = 0; i < OUT; ++i) {
        const float d = v[r][i] - mean;
        if (i < across_here) total += pass ? d * d : d;
      }
    }
    total = sum_of_line(line, item, total);
    if (!pass) mean = total / values;
  }
  if (item > 0 || get_global_id(1) >= outputs) return;
#if CHANNEL_REDUCTION == 1
  reduction.to[part] = values, reduction.to[part + reduction.apart] = mean, reduction.to[part + 2 * reduction.apart] = total;
#else
  reduction.to[part] = total;
#endif
#else
  float2 sums = (float2)(0.0f);
#pragma unroll
  for (int r = 0; r < OUT; ++r) {
    if (r >= down_here) continue;
    global const NORMAL_T* x = reduction.x + place.sample * reduction.x_stride + element + r * w;
#pragma unroll
    for (int i = 0; i < OUT; ++i)
      if (i < across_here) sums += gradient_sums(reduction, plane, GET(NORMAL_T, x + i), v[r][i]);
  }
  sums.x = sum_of_line(line, item, sums.x);
  sums.y = sum_of_line(line, item, sums.y);
  if (item > 0 || get_global_id(1) >= outputs) return;
  reduction.to[part] = sums.x, reduction.to[part + reduction.apart] = sums.y;
#endif
#endif
}

#if OUT == 4
kernel void window(OPERAND_RESTRICT(const float, sums), OPERAND_RESTRICT(RESULT_T, dw), int channels, int outputs, int groups, int splits, int accumulate) {
  const int c = get_global_id(0), o = get_global_id(1), group = get_global_id(2);
  if (c >= channels || o >= outputs) return;
  LOCATE(sums), LOCATE(dw);
  const ulong step = (ulong)groups * outputs * channels;
  const ulong place = ((ulong)group * outputs + o) * channels + c;
  float m[SIDE][SIDE], half_way[SIDE][3], column[SIDE], to[3];
#pragma unroll
  for (int p = 0; p < POINTS; ++p) m[p / SIDE][p % SIDE] = 0.0f;
  for (int s = 0; s < splits; ++s) {
#pragma unroll
    for (int p = 0; p < POINTS; ++p) m[p / SIDE][p % SIDE] += sums[((ulong)s * POINTS + p) * step + place];
  }
#pragma unroll
  for (int r = 0; r < SIDE; ++r) window_axis(m[r], half_way[r]);
#pragma unroll
  for (int i = 0; i < 3; ++i) {
#pragma unroll
    for (int r = 0; r < SIDE; ++r) column[r] = half_way[r][i];
    window_axis(column, to);
#pragma unroll
    for (int r = 0; r < 3; ++r) put(dw + place * 9 + r * 3 + i, to[r], accumulate, 1.0f, NO_SIGN(dw), 0);
  }
}
#endif
