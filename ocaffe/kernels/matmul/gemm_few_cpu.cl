/* Matrix product of few rows with a transposed matrix for CPU runtimes: c[M, N] = a b' (+ bias per column) (+ c), for example an inner
   product layer with few images. Its time is that of reading b from memory, so b is read once, in its own layout, without a copy.

   V     floats of a native vector: 4, 8 or 16
   ROWS  rows of a that are multiplied together; 1 for a single row

   Each element of c is the product of two contiguous rows, summed in V lanes. A work-item computes `columns` columns of c, SIDE at a time.
   It reads b in pieces of DEEP elements along the depth. While a piece is in the first-level cache, all rows of `a` are multiplied by it. */
#include "common.h"

#ifndef ROWS
#define ROWS 4
#endif
#define NV 1
#define MR ROWS
#include "tile_cpu.h"

#define SIDE 4   /* rows of b at a time; ops/gemm_cpu.py has the same value */
#define MOST 32  /* rows of a that `sums` has room for; ops/gemm_cpu.py uses this kernel for fewer (MOST) */
#define DEEP 512 /* floats of a row in one pass */

/* Return the sum of the lanes. */
inline float OWN(lanes)(vec v) {
#if V == 16
  const float8 eight = v.lo + v.hi;
  const float4 four = eight.lo + eight.hi;
#elif V == 8
  const float4 four = v.lo + v.hi;
#else
  const float4 four = v;
#endif
  const float2 two = four.lo + four.hi;
  return two.x + two.y;
}

SINGLE void ENTRY(few)(OPERAND_RESTRICT(const float, a), OPERAND_RESTRICT(const float, b), OPERAND_RESTRICT(const float, bias),
                OPERAND_RESTRICT(float, c), int M, int N, int K, int columns, int has_bias, int accumulate, ACTIVATION) {
  LOCATE(a); LOCATE(b); LOCATE(bias); LOCATE(c);
  const int first = get_global_id(0) * columns, last = min(N, first + columns), whole = K / V * V;
  float sums[MOST * SIDE * V] __attribute__((aligned(64)));
  for (int n = first; n < last; n += SIDE) {
    const int count = min(SIDE, last - n);
    global const float* right[SIDE]; /* past the last column: copies of it */
#pragma unroll
    for (int j = 0; j < SIDE; j++) right[j] = b + (n + min(j, count - 1)) * b_stride;
    for (int k0 = 0; k0 < K; k0 += DEEP) {
      const int end = min(whole, k0 + DEEP);
      float* kept = sums;
      for (int m = 0; m < M; m += ROWS, kept += ROWS * SIDE * V) {
        global const float* left[ROWS];
        global const float* next = right[m / ROWS % SIDE] + DEEP; /* each pass prefetches some of the next DEEP floats */
        vec acc[ROWS][SIDE];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          left[i] = a + min(m + i, M - 1) * a_stride;
#pragma unroll
          for (int j = 0; j < SIDE; j++) acc[i][j] = k0 ? PRIVATE(kept + (i * SIDE + j) * V) : (vec)(0);
        }
        for (int k = k0; k < end; k += V) {
          vec now[SIDE];
          AHEAD(next + k);
#pragma unroll
          for (int j = 0; j < SIDE; j++) now[j] = GLOBAL(right[j] + k);
#pragma unroll
          for (int i = 0; i < ROWS; i++) {
            const vec row = GLOBAL(left[i] + k);
#pragma unroll
            for (int j = 0; j < SIDE; j++) acc[i][j] += row * now[j];
          }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
          for (int j = 0; j < SIDE; j++) PRIVATE(kept + (i * SIDE + j) * V) = acc[i][j];
      }
    }
    for (int m = 0; m < M; m++)
      for (int j = 0; j < count; j++) {
        float sum = lanes(PRIVATE(sums + (m * SIDE + j) * V));
        ROLLED for (int k = whole; k < K; k++) sum += a[m * a_stride + k] * right[j][k];
        global float* to = c + m * c_stride + n + j;
        float v = sum * FACTOR(bias, n + j) + OFFSET(bias, n + j) + (accumulate ? *to : 0.0f);
        ACTIVATE(float, v);
        *to = v;
      }
  }
}
