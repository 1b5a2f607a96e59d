/* MAX and AVE pooling of H x W images over windows without dilation, on GPUs. Defines: see pooling.h; FUSED_RELU: see fused_relu.h.
 *
 * forward        y = pool(x)
 * forward_index  (MAX) the same, and the position of each output's maximum in its window
 * backward       dx, as a gather: each pixel adds the outputs whose windows contain it, in order; then the fused ReLU backward
 *
 * Work-items: see strip_gpu.h; there are `planes` of `strips` strips each. In backward a strip has ceil(W / SW) work-items.
 */
#include "fused_relu.h"
#include "pooling.h"
#include "strip_gpu.h"

#define SIZES int planes, int strips, int H, int W, int OH, int OW
#define SEEN FORWARD_ROWS(KH, SH, 1)
#define WITHIN(i, size) ((uint)(i) < (uint)(size))

#define EACH_PIXEL                                                                                                    \
  x += sample * x_stride + (ulong)plane * H * W;                                                                      \
  const int top = strip * ROWS, at_y = top * SH - PH, at_x = strip_column * SW - PW;                                  \
  _Pragma("unroll") for (int q = 0; q < SEEN; ++q) _Pragma("unroll") for (int p = 0; p < KW; ++p)                     \
    if (WITHIN(at_y + q, H) && WITHIN(at_x + p, W))

#define EACH_RESULT                                                                              \
  const ulong first = (ulong)plane * OH * OW + top * OW + strip_column;                          \
  _Pragma("unroll") for (int r = 0; r < ROWS; ++r) if (top + r < OH)

#if METHOD == MAX
#define CHOOSE                                                              \
  float best[ROWS];                                                         \
  int at[ROWS];                                                             \
  _Pragma("unroll") for (int r = 0; r < ROWS; ++r) {                        \
    best[r] = -FLT_MAX;                                                     \
    at[r] = -1;                                                             \
  }                                                                         \
  EACH_PIXEL {                                                              \
    const float v = GET(SOURCE_T, x + (at_y + q) * W + at_x + p);                           \
    _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                        \
      if (IS_TAP(q - r * SH, KH, 1) && v > best[r]) {                       \
        best[r] = v;                                                        \
        at[r] = (q - r * SH) * KW + p;                                      \
      }                                                                     \
  }

kernel void forward(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(RESULT_T, y), SIZES) {
  LOCATE(x), LOCATE(y);
  STRIP_ITEM(planes, strips, OW)
  CHOOSE
  EACH_RESULT SET(RESULT_T, y + sample * y_stride + first + r * OW, best[r]);
}

kernel void forward_index(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(RESULT_T, y), OPERAND_RESTRICT(INDEX, index), SIZES) {
  LOCATE(x), LOCATE(y), LOCATE(index);
  STRIP_ITEM(planes, strips, OW)
  CHOOSE
  EACH_RESULT {
    SET(RESULT_T, y + sample * y_stride + first + r * OW, best[r]);
    index[sample * index_stride + first + r * OW] = at[r];
  }
}
#else
#define AREA(r, c) (EXTENT((r)*SH - PH, KH, PH, H) * EXTENT((c)*SW - PW, KW, PW, W))

kernel void forward(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(RESULT_T, y), SIZES) {
  LOCATE(x), LOCATE(y);
  STRIP_ITEM(planes, strips, OW)
  float sum[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) sum[r] = 0.0f;
  EACH_PIXEL {
    const float v = GET(SOURCE_T, x + (at_y + q) * W + at_x + p);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (IS_TAP(q - r * SH, KH, 1)) sum[r] += v;
  }
  EACH_RESULT SET(RESULT_T, y + sample * y_stride + first + r * OW, sum[r] / AREA(top + r, strip_column));
}
#endif

#define HEIGHT BACK_ROWS(SH)

#if METHOD == AVE
#define INDEX_OPERAND
#define GIVEN(r, c) (GET(SOURCE_T, dy + (r)*OW + (c)) / AREA(r, c))
#define GOES(tap) 1
#else
#define INDEX_OPERAND OPERAND_RESTRICT(const INDEX, index),
#define GIVEN(r, c) FUSED_RELU_BEFORE_SCATTER(GET(SOURCE_T, dy + (r)*OW + (c)), sign + sample * sign_stride, plane * OH * OW + (r)*OW + (c))
#define GOES(tap) (place == (tap))
#endif

kernel void backward(OPERAND_RESTRICT(const SOURCE_T, dy), INDEX_OPERAND SIGN OPERAND_RESTRICT(RESULT_T, dx), SIZES, int accumulate SLOPE) {
  LOCATE(dy), LOCATE(dx);
  LOCATE_SIGN;
  STRIP_ITEM(planes, strips, (W + SW - 1) / SW)
  const int row = strip * HEIGHT, column = strip_column * SW;
  dy += sample * dy_stride + (ulong)plane * OH * OW;
#if METHOD != AVE
  LOCATE(index);
  index += sample * index_stride + (ulong)plane * OH * OW;
#endif
  float sum[HEIGHT][SW];
#pragma unroll
  for (int r = 0; r < HEIGHT; ++r)
#pragma unroll
    for (int s = 0; s < SW; ++s) sum[r][s] = 0.0f;
#pragma unroll
  for (int q = FIRST_BACK(KH, SH, PH, 1); q <= LAST_BACK(HEIGHT, SH, PH); ++q)
#pragma unroll
    for (int p = FIRST_BACK(KW, SW, PW, 1); p <= LAST_BACK(SW, SW, PW); ++p) {
      const int y = row / SH + q, x = strip_column + p;
      if (!WITHIN(y, OH) || !WITHIN(x, OW)) continue;
      const float v = GIVEN(y, x);
#if METHOD != AVE
      const int place = index[y * OW + x];
#endif
#pragma unroll
      for (int r = 0; r < HEIGHT; ++r)
#pragma unroll
        for (int s = 0; s < SW; ++s)
          if (IS_TAP(r + PH - q * SH, KH, 1) && IS_TAP(s + PW - p * SW, KW, 1))
            if (GOES((r + PH - q * SH) * KW + s + PW - p * SW)) sum[r][s] += v;
    }
  const int element = plane * H * W + row * W + column;
  dx += sample * dx_stride + element;
  /* All old values and masks are read before the first store (fused_relu.h). */
#if SW == 2
  if (((W | dx_offset | dx_stride) & 1) == 0 && SIGN_ALIGNED) {
    int2 pass[HEIGHT];
#pragma unroll
    for (int r = 0; r < HEIGHT; ++r) {
      pass[r] = (int2)(-1);
      if (row + r >= H) continue;
      const float2 there = accumulate ? GET2(RESULT_T, dx + r * W) : (float2)(0.0f);
      sum[r][0] += there.x, sum[r][1] += there.y;
      pass[r] = IF_FUSED_RELU((PASSES2(sign + sample * sign_stride, element + r * W)), (int2)(-1));
    }
#pragma unroll
    for (int r = 0; r < HEIGHT; ++r) {
      const float2 v = (float2)(sum[r][0], sum[r][1]);
      if (row + r < H) SET2(RESULT_T, dx + r * W, IF_FUSED_RELU(select(slope * v, v, pass[r]), v));
    }
    return;
  }
#endif
  int passes[HEIGHT][SW];
#pragma unroll
  for (int r = 0; r < HEIGHT; ++r)
#pragma unroll
    for (int s = 0; s < SW; ++s) {
      const int exists = row + r < H && column + s < W;
      if (accumulate && exists) sum[r][s] += GET(RESULT_T, dx + r * W + s);
      passes[r][s] = IF_FUSED_RELU(exists && PASSES(sign + sample * sign_stride, element + r * W + s), 1);
    }
#pragma unroll
  for (int r = 0; r < HEIGHT; ++r)
#pragma unroll
    for (int s = 0; s < SW; ++s)
      if (row + r < H && column + s < W) SET(RESULT_T, dx + r * W + s, IF_FUSED_RELU(passes[r][s] ? sum[r][s] : slope * sum[r][s], sum[r][s]));
}
