/* LRN across channels on channels in blocks of 8, as in block_operands.h; for the formulas, the functions and their arguments see lrn.cl.
 *
 * Defines: see lrn_across.h. SIZE is at most 9: the windows of a block, and those of its windows, reach no further than the next blocks.
 *
 * `chunk` is a multiple of 8. A work-item reads each block of its position before it writes there.
 */
#include "block_operands.h"
#include "lrn_across.h"
#include "fused_relu.h"

INLINE void spread(float to[8], float8 v) { to[0] = v.s0, to[1] = v.s1, to[2] = v.s2, to[3] = v.s3, to[4] = v.s4, to[5] = v.s5, to[6] = v.s6, to[7] = v.s7; }
INLINE float8 gathered(const float v[8]) { return (float8)(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]); }

/* The sum of squares of the SIZE values around v[0]. */
INLINE float sum_of_squares(const float* v) {
  float sum = 0.0f;
#pragma unroll
  for (int j = -REACH; j <= REACH; ++j) sum += v[j] * v[j];
  return sum;
}

INLINE float sum_around(const float* v) {
  float sum = 0.0f;
#pragma unroll
  for (int j = -REACH; j <= REACH; ++j) sum += v[j];
  return sum;
}

/* Drop the first of `count` blocks. */
#define DROP(values, count) _Pragma("unroll") for (int j = 0; j < 8 * ((count) - 1); ++j) values[j] = values[j + 8]
#define EACH_CHANNEL _Pragma("unroll") for (int c = 0; c < 8; ++c)
#define PLACES                                                                                                \
  const int position = get_global_id(0), blocks = channels / 8;                                              \
  if (position >= plane) return;                                                                              \
  const int first = get_global_id(1) * (chunk / 8), end = min(first + chunk / 8, blocks);
#define ELEMENT(block) (((block) * plane + position) * 8)
#define AT(x, block) (x + get_global_id(2) * x##_stride + ELEMENT(block))
#define INSIDE(block) ((block) >= 0 && (block) < blocks)
#define BLOCK_OF(x, block) (INSIDE(block) ? GET8(BLOCK_T, AT(x, block)) : (float8)(0.0f))

kernel void forward(OPERAND(const BLOCK_T, x), OPERAND(BLOCK_T, y), const int channels, const int plane, const int chunk, const float share, const float k,
                    const float beta) {
  LOCATE(x), LOCATE(y);
  PLACES
  float xs[24], each[8]; /* xs: of blocks b - 1 to b + 1 */
  spread(xs + 8, BLOCK_OF(x, first - 1));
  spread(xs + 16, BLOCK_OF(x, first));
  for (int b = first; b < end; ++b) {
    DROP(xs, 3);
    spread(xs + 16, BLOCK_OF(x, b + 1));
    float inverse;
    EACH_CHANNEL each[c] = xs[8 + c] * power(k + share * sum_of_squares(xs + 8 + c), beta, &inverse);
    SET8(BLOCK_T, AT(y, b), gathered(each));
  }
}

/* Three pipeline stages: load x of block b + 2, compute the terms of block b + 1, write dx of block b. */
kernel void backward(OPERAND(const BLOCK_T, x), OPERAND(const BLOCK_T, dy), SIGN OPERAND(BLOCK_T, dx), const int channels, const int plane, const int chunk,
                     const float share, const float k, const float beta, const int accumulate SLOPE) {
  LOCATE(x), LOCATE(dy), LOCATE(dx);
  LOCATE_SIGN;
  PLACES
  float xs[24];     /* of blocks b to b + 2 */
  float direct[16]; /* dy s^-beta of blocks b and b + 1 */
  float terms[24];  /* dy x s^(-beta-1) of blocks b - 1 to b + 1 */
  float each[8];
#pragma unroll
  for (int j = 0; j < 24; ++j) xs[j] = terms[j] = 0.0f;
#pragma unroll
  for (int j = 0; j < 16; ++j) direct[j] = 0.0f;
  spread(xs + 16, BLOCK_OF(x, first - 1));
  for (int b = first - 2; b < end; ++b) {
    DROP(xs, 3);
    DROP(direct, 2);
    DROP(terms, 3);
    spread(xs + 16, BLOCK_OF(x, b + 2));
    spread(direct + 8, BLOCK_OF(dy, b + 1));
    EACH_CHANNEL {
      float inverse;
      direct[8 + c] *= power(k + share * sum_of_squares(xs + 8 + c), beta, &inverse);
      terms[16 + c] = direct[8 + c] * xs[8 + c] * inverse;
    }
    if (b < first) continue;
    EACH_CHANNEL each[c] = direct[c] - 2 * share * beta * xs[c] * sum_around(terms + 8 + c);
    float8 result = gathered(each);
    if (accumulate) result += GET8(BLOCK_T, AT(dx, b));
    SET8(BLOCK_T, AT(dx, b), IF_FUSED_RELU(select(slope * result, result, PASSES8(sign + get_global_id(2) * sign_stride, ELEMENT(b))), result));
  }
}
