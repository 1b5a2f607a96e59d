/* Matrix product for work-groups that share tiles in local memory: c[M][N] = op(a) op(b) (+ bias[n]), then the slope or the fused ReLU
   backward (fused_relu.h).

   Defines: the tile (tile_gpu.h, fetch_gpu.h); DEVICE_FENCE: last-block reduction (common.h).

   Leading dimensions are the operands' strides. trans_a: a is stored as K x M; trans_b: b is stored as N x K. The matrices of the
   `batches` follow each other in each operand. A split takes `depth` of K.
   Group (x, y, z): columns, rows, and batch and split of the depth.
   With DEVICE_FENCE the last group of a tile adds the splits and writes c. Otherwise each split writes its own matrices, one after the
   other, and split_sum adds them.

   An operand is fetched as float4 if it is aligned and the whole tile exists, otherwise element by element. */
#include "common.h"
#include "epilogue.h"
#include "fetch_gpu.h"
#include "split_sum.h"
#include "tile_gpu.h"

kernel OF_NT void gemm(OPERAND_RESTRICT(const float, a), OPERAND_RESTRICT(const float, b),
                       SIGN COMPLETION_COUNTER_OPERAND OPERAND_RESTRICT(const float, bias),
                       OPERAND_RESTRICT(RESULT_T, c) PARTS, int M, int N, int K, int depth, int batches,
                       int trans_a, int trans_b, int has_bias, int accumulate, float slope) {
  LOCAL_TILE(as, 2 * BK * LDA);
  LOCAL_TILE(bs, 2 * BK * LDB);
  const int item = get_local_id(0);
  const int row = get_group_id(1) * BM, column = get_group_id(0) * BN;
  const int batch = get_group_id(2) % batches, split = get_group_id(2) / batches;
  const int begin = split * depth, end = min(K, begin + depth);
  const int rows = M - row, columns = N - column;
  const int whole = rows >= BM && columns >= BN && ((a_offset | a_stride | b_offset | b_stride) & 3) == 0;

  PART(a, BM, LDA, !trans_a, 0);
  PART(b, BN, LDB, trans_b, 1);
  const ulong a_row_step = trans_a ? 1 : a_stride, a_depth_step = trans_a ? a_stride : 1;
  const ulong b_column_step = trans_b ? b_stride : 1, b_depth_step = trans_b ? 1 : b_stride;
  LOCATE(a), LOCATE(b), LOCATE(bias), LOCATE(c);
  LOCATE_SIGN;
  a += (ulong)batch * (trans_a ? K : M) * a_stride;
  b += (ulong)batch * (trans_b ? N : K) * b_stride;
  a += (row + a_line) * a_row_step + (begin + a_depth) * a_depth_step;
  b += (column + b_line) * b_column_step + (begin + b_depth) * b_depth_step;
  const ulong a_next = a_next_line * a_row_step + a_next_depth * a_depth_step;
  const ulong b_next = b_next_line * b_column_step + b_next_depth * b_depth_step;
  local const float* a_from = as + tile_row(item);
  local const float* b_from = bs + tile_column(item);

  float acc[SUM_ROWS][TN];
  float4 ra[FOURS(BM)], rb[FOURS(BN)];
  const int steps = (end - begin + BK - 1) / BK;
  for (int exact = 0;; exact = 1) {
    tile_clear(acc);
    global const float *a_at = a, *b_at = b;
    /* Step s is fetched while step s - 1 is multiplied, so that the loads overlap the arithmetic. */
    for (int s = 0; s <= steps; ++s) {
      const int k = begin + s * BK;
      if (s < steps) {
        if (whole && k + BK <= end) {
#pragma unroll
          for (int i = 0; i < FOURS(BM); ++i) ra[i] = *(global const float4*)(a_at + i * a_next);
#pragma unroll
          for (int i = 0; i < FOURS(BN); ++i) rb[i] = *(global const float4*)(b_at + i * b_next);
        } else {
#pragma unroll
          for (int i = 0; i < FOURS(BM); ++i)
            ra[i] = FETCH_EDGE(float)(a_at + i * a_next, existing(a_line + i * a_next_line, k + a_depth + i * a_next_depth, rows, end, !trans_a));
#pragma unroll
          for (int i = 0; i < FOURS(BN); ++i)
            rb[i] = FETCH_EDGE(float)(b_at + i * b_next, existing(b_line + i * b_next_line, k + b_depth + i * b_next_depth, columns, end, trans_b));
        }
        a_at += BK * a_depth_step;
        b_at += BK * b_depth_step;
      }
      if (s > 0) tile_multiply(a_from + ((s - 1) & 1) * (BK * LDA), b_from + ((s - 1) & 1) * (BK * LDB), acc, s, exact);
      if (s < steps) {
#pragma unroll
        for (int i = 0; i < FOURS(BM); ++i)
          stage(as + (s & 1) * (BK * LDA) + i * (a_next_depth * LDA + a_next_line), a_to, ra[i], a_depth, !trans_a, 0);
#pragma unroll
        for (int i = 0; i < FOURS(BN); ++i)
          stage(bs + (s & 1) * (BK * LDB) + i * (b_next_depth * LDB + b_next_line), b_to, rb[i], b_depth, trans_b, 1);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (tile_is_done(acc, exact, as)) break;
  }

  int matrix = get_group_id(2); /* the one that this group writes */
#ifdef DEVICE_FENCE
  LOCATE(counters), LOCATE(parts);
  matrix = batch;
  const int tile = (batch * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0);
  if (!tile_join(counters, parts, tile, split, get_num_groups(2) / batches, acc, as)) return;
#endif
  if (has_bias) tile_bias(acc, columns, bias + column, bias_stride, has_bias);
  c += ((ulong)matrix * M + row) * c_stride + column;
  tile_store(c, c_stride, rows, columns, ((c_offset | c_stride) & 3) == 0 && SIGN_ALIGNED, acc, accumulate, slope, IF_FUSED_RELU(sign + row * sign_stride, c),
             IF_FUSED_RELU(sign_stride, 0), column);
}
