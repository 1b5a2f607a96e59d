/* MAX and AVE pooling of H x W images over windows without dilation, on channels in blocks of 8, as in block_operands.h. Defines: see
 * pooling.h; FUSED_RELU: see fused_relu.h. The functions and their arguments are those of pooling_gpu.cl, with `planes` blocks instead of planes. A saved
 * index is in blocks too.
 *
 * Images of one pixel, y of a global pooling, may be floats.
 *
 * A work-item computes the eight channels of one pixel: of y in forward, of dx in backward. Work-items: planes * pixels, samples.
 */
#include "block_operands.h"
#include "fused_relu.h"
#include "pooling.h"

#define SIZES int planes, int strips, int H, int W, int OH, int OW
#define WITHIN(i, size) ((uint)(i) < (uint)(size))
/* Declare the place of a work-item, and leave if it has none. */
#define PIXEL_ITEM(height, width)                                                                                       \
  const int item = get_global_id(0), sample = get_global_id(1), plane = item / ((height) * (width));                    \
  const int row = item % ((height) * (width)) / (width), column = item % (width);                                       \
  if (plane >= planes) return;

#define EACH_PIXEL                                                                                \
  x += sample * x_stride + (ulong)plane * H * W * 8;                                              \
  const int at_y = row * SH - PH, at_x = column * SW - PW;                                        \
  _Pragma("unroll") for (int q = 0; q < KH; ++q) _Pragma("unroll") for (int p = 0; p < KW; ++p) \
    if (WITHIN(at_y + q, H) && WITHIN(at_x + p, W))

#if METHOD == MAX
#define INDEX8_OF(T) VECTOR_OF(T, 8)
#define TO_INDEX8_OF(T) CONVERT_TO(T)
#define CONVERT_TO(T) convert_##T##8
#define CHOOSE                                                                     \
  float8 best = (float8)(-FLT_MAX);                                                \
  int8 at = (int8)(-1);                                                            \
  EACH_PIXEL {                                                                     \
    const float8 v = GET8(BLOCK_T, x + ((at_y + q) * W + at_x + p) * 8);           \
    const int8 more = v > best;                                                    \
    best = select(best, v, more);                                                  \
    at = select(at, (int8)(q * KW + p), more);                                     \
  }

kernel void forward(OPERAND_RESTRICT(const BLOCK_T, x), OPERAND_RESTRICT(RESULT_T, y), SIZES) {
  LOCATE(x), LOCATE(y);
  PIXEL_ITEM(OH, OW)
  CHOOSE
  SET8(RESULT_T, y + sample * y_stride + (ulong)item * 8, best);
}

kernel void forward_index(OPERAND_RESTRICT(const BLOCK_T, x), OPERAND_RESTRICT(RESULT_T, y), OPERAND_RESTRICT(INDEX, index), SIZES) {
  LOCATE(x), LOCATE(y), LOCATE(index);
  PIXEL_ITEM(OH, OW)
  CHOOSE
  SET8(RESULT_T, y + sample * y_stride + (ulong)item * 8, best);
  *(global INDEX8_OF(INDEX)*)(index + sample * index_stride + (ulong)item * 8) = TO_INDEX8_OF(INDEX)(at);
}
#else
#define AREA(r, c) (EXTENT((r)*SH - PH, KH, PH, H) * EXTENT((c)*SW - PW, KW, PW, W))

kernel void forward(OPERAND_RESTRICT(const BLOCK_T, x), OPERAND_RESTRICT(RESULT_T, y), SIZES) {
  LOCATE(x), LOCATE(y);
  PIXEL_ITEM(OH, OW)
  float8 sum = (float8)(0.0f);
  EACH_PIXEL sum += GET8(BLOCK_T, x + ((at_y + q) * W + at_x + p) * 8);
  SET8(RESULT_T, y + sample * y_stride + (ulong)item * 8, sum / (float)AREA(row, column));
}
#endif

#if METHOD == AVE
#define INDEX_OPERAND
#else
#define INDEX_OPERAND OPERAND_RESTRICT(const INDEX, index),
#endif

kernel void backward(OPERAND_RESTRICT(const SOURCE_T, dy), INDEX_OPERAND SIGN OPERAND_RESTRICT(BLOCK_T, dx), SIZES, int accumulate SLOPE) {
  LOCATE(dy), LOCATE(dx);
  LOCATE_SIGN;
  PIXEL_ITEM(H, W)
  const int out = plane * OH * OW;
  dy += sample * dy_stride;
#if METHOD != AVE
  LOCATE(index);
  index += sample * index_stride;
#endif
  float8 sum = (float8)(0.0f);
  const int last_y = LAST_OUT(row, SH, PH, OH), last_x = LAST_OUT(column, SW, PW, OW);
  for (int y = FIRST_OUT(row, KH, SH, PH); y <= last_y; ++y)
    for (int x = FIRST_OUT(column, KW, SW, PW); x <= last_x; ++x) {
      const int element = (out + y * OW + x) * 8;
      float8 v = GET8(SOURCE_T, dy + element);
#if METHOD == AVE
      sum += v / (float)AREA(y, x);
#else
#if FUSED_RELU == 3
      v = select(slope * v, v, PASSES8(sign + sample * sign_stride, element));
#endif
      const int8 place = convert_int8(*(global const VECTOR_OF(INDEX, 8)*)(index + element));
      sum += select((float8)(0.0f), v, place == (int8)((row + PH - y * SH) * KW + column + PW - x * SW));
#endif
    }
  dx += sample * dx_stride + (ulong)item * 8;
  if (accumulate) sum += GET8(BLOCK_T, dx);
  SET8(BLOCK_T, dx, IF_FUSED_RELU(select(slope * sum, sum, PASSES8(sign + sample * sign_stride, item * 8)), sum));
}
