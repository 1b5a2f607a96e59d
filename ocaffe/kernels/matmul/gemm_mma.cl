/* gemm_gpu.cl on tensor cores: c[M][N] = op(a) op(b) (+ bias[n]), with the same groups and arguments, but without last-block reduction.

   Defines: the tile (tile_mma.h). TRANS_A, TRANS_B: the layouts of the operands. They are compile-time constants because they determine
   the order of the registers that a load fills. QUADS(BM) and QUADS(BN) are 1, 2 or 4; NT is a multiple of 128.
   An operand is fetched as float4 if it is aligned and its part of the tile exists, otherwise element by element. */
#include "common.h"
#include "epilogue.h"
#include "split_sum.h"
#include "tile_mma.h"

#ifndef TRANS_A
#define TRANS_A 0
#define TRANS_B 0
#endif

kernel __attribute__((reqd_work_group_size(NT, 1, 1))) SUB_GROUP void gemm(OPERAND_RESTRICT(const float, a), OPERAND_RESTRICT(const float, b),
                                                                 SIGN OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(RESULT_T, c), int M,
                                                                 int N, int K, int depth, int batches, int has_bias,
                                                                 int accumulate, float slope) {
  LOCAL_QUADS(as, 2 * 4 * BM);
  LOCAL_QUADS(bs, 2 * 4 * BN);
  const int item = get_local_id(0);
  const int row = get_group_id(1) * BM, column = get_group_id(0) * BN;
  const int batch = get_group_id(2) % batches, split = get_group_id(2) / batches;
  const int begin = split * depth, end = min(K, begin + depth);
  const int rows = M - row, columns = N - column;
  const int a_whole = rows >= BM && ((a_offset | a_stride) & 3) == 0, b_whole = columns >= BN && ((b_offset | b_stride) & 3) == 0;
  const Share a_share = TRANS_A ? share_across(BM) : share_along(), b_share = TRANS_B ? share_along() : share_across(BN);
  const int a_depth = a_share.quad * QUAD, b_depth = b_share.quad * QUAD;
  int a_to[QUADS(BM)], b_to[QUADS(BN)];
  places_of(a_share, QUADS(BM), a_to);
  places_of(b_share, QUADS(BN), b_to);

  LOCATE(a), LOCATE(b), LOCATE(bias), LOCATE(c);
  LOCATE_SIGN;
  a += (ulong)batch * (TRANS_A ? K : M) * a_stride;
  b += (ulong)batch * (TRANS_B ? N : K) * b_stride;
  a += (row + a_share.line) * (TRANS_A ? 1 : a_stride) + (begin + a_depth) * (TRANS_A ? a_stride : 1);
  b += (column + b_share.line) * (TRANS_B ? b_stride : 1) + (begin + b_depth) * (TRANS_B ? 1 : b_stride);
  const ulong a_step = BK * (TRANS_A ? a_stride : 1), b_step = BK * (TRANS_B ? 1 : b_stride);

  float acc[TM][TN], ra[AHEAD][QUADS(BM)][QUAD], rb[AHEAD][QUADS(BN)][QUAD];
  const int steps = (end - begin + BK - 1) / BK;
  tile_clear(acc);
  global const float *a_at = a, *b_at = b;
  /* Step t is fetched while step t - AHEAD is multiplied, and is stored to local memory AHEAD - 1 steps later. */
  for (int s = 0; s < steps + AHEAD; s += AHEAD)
#pragma unroll
    for (int now = 0; now < AHEAD; ++now) {
      const int t = s + now, stored = t - AHEAD + 1; /* t is the step to fetch, `stored` the step to store */
      if (t < steps) {
        const int k = begin + t * BK, full = k + BK <= end;
        if (TRANS_A)
          FETCH(across, float)(ra[now], QUADS(BM), a_at, a_stride, rows - a_share.line, end - k - a_depth, a_whole && full);
        else
          FETCH(along, float)(ra[now], QUADS(BM), a_at, a_stride, rows - a_share.line, end - k - a_depth, a_whole && full);
        if (TRANS_B)
          FETCH(along, float)(rb[now], QUADS(BN), b_at, b_stride, columns - b_share.line, end - k - b_depth, b_whole && full);
        else
          FETCH(across, float)(rb[now], QUADS(BN), b_at, b_stride, columns - b_share.line, end - k - b_depth, b_whole && full);
        a_at += a_step;
        b_at += b_step;
      }
      if (t >= AHEAD && t < steps + AHEAD) quads_multiply(as + (t + AHEAD) % 2 * (4 * BM), bs + (t + AHEAD) % 2 * (4 * BN), acc);
      if (stored >= 0 && stored < steps) {
        STORE_QUADS(float)(as + stored % 2 * (4 * BM), a_to, ra[(now + 1) % AHEAD], QUADS(BM), LEFT_SCALE);
        STORE_QUADS(float)(bs + stored % 2 * (4 * BN), b_to, rb[(now + 1) % AHEAD], QUADS(BN), RIGHT_SCALE);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  tile_unscale(acc);

  if (has_bias) tile_bias(acc, columns, bias + column, bias_stride, has_bias);
  c += ((ulong)get_group_id(2) * M + row) * c_stride + column;
  tile_store(c, c_stride, rows, columns, ((c_offset | c_stride) & 3) == 0 && SIGN_ALIGNED, acc, accumulate, slope, IF_FUSED_RELU(sign + row * sign_stride, c),
             IF_FUSED_RELU(sign_stride, 0), column);
}
