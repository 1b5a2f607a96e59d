/* Matrix product for CPU runtimes: c[M, N] = op(a) op(b) (+ bias per column) (+ c); the rows of c are its batch stride apart.

   V, NV, MR, KC   the register tile, see tile_cpu.h
   WIDE            panels of KC x NR of op(b) that a work-item keeps: together they should fit a quarter of the second-level cache

   op(a) is packed as panels of MR rows (product_parts_cpu.cl). `transposed`: b is stored as N x K.
   Work-item: `wide` panels of NR columns of c, a block of `rows` rows. It copies `deep` rows of op(b) at a time to private memory, in
   the order of the inner loop, and multiplies all its rows by them. A panel of op(a) is fetched once for all panels of columns.
   A transposed b only changes the copy. deep * wide is at most KC * WIDE.
   The third dimension counts products of one size, whose matrices follow each other in each operand. */
#include "common.h"
#include "tile_cpu.h"

#ifndef WIDE
#define WIDE 4
#endif

/* buf[k][j] = b[k][j] for k < depth; columns from `columns` on are zero. */
inline void OWN(copy_rows)(global const float* b, ulong ld, int depth, int columns, float* buf) {
  if (columns == NR) {
    for (int k = 0; k < depth; k++, b += ld)
#pragma unroll
      for (int j = 0; j < NV; j++) PRIVATE(buf + k * NR + j * V) = GLOBAL(b + j * V);
  } else {
    for (int k = 0; k < depth; k++, b += ld)
      for (int j = 0; j < NR; j++) buf[k * NR + j] = j < columns ? b[j] : 0.0f;
  }
}

/* The same from a transposed b: buf[k][j] = b[j][k]. */
inline void OWN(copy_columns)(global const float* b, ulong ld, int depth, int columns, float* buf) {
  for (int j0 = 0; j0 < NR; j0 += V) {
    const int whole = j0 + V <= columns ? depth / V * V : 0;
    for (int k = 0; k < whole; k += V) {
      vec block[V];
#pragma unroll
      for (int j = 0; j < V; j++) block[j] = GLOBAL(b + (j0 + j) * ld + k);
      transpose(block);
#pragma unroll
      for (int i = 0; i < V; i++) PRIVATE(buf + (k + i) * NR + j0) = block[i];
    }
    for (int j = j0; j < j0 + V; j++)
      for (int k = whole; k < depth; k++) buf[k * NR + j] = j < columns ? b[j * ld + k] : 0.0f;
  }
}

SINGLE void ENTRY(gemm)(OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, b), OPERAND_RESTRICT(const float, bias),
          OPERAND_RESTRICT(float, c), int M, int N, int K, int transposed, int deep, int wide, int rows, int has_bias, int accumulate,
          ACTIVATION) {
  LOCATE(packed); LOCATE(b); LOCATE(bias); LOCATE(c);
  const ulong product = get_global_id(2);
  packed += product * packed_stride;
  b += product * (transposed ? N : K) * b_stride;
  c += product * M * c_stride;
  const int n0 = get_global_id(0) * wide * NR, n1 = min(N, n0 + wide * NR);
  const int first = get_global_id(1) * rows, last = min(M, first + rows);
  const int step = deep * NR; /* distance between two panels of columns */
  float buf[WIDE * KC * NR] __attribute__((aligned(64)));
  float tile[MR * NR] __attribute__((aligned(64)));
  for (int k0 = 0; k0 < K; k0 += deep) {
    const int depth = min(deep, K - k0), add = accumulate || k0 > 0;
    float* to = buf;
    for (int n = n0; n < n1; n += NR, to += step) {
      if (transposed) copy_columns(b + n * b_stride + k0, b_stride, depth, min(NR, N - n), to);
      else copy_rows(b + k0 * b_stride + n, b_stride, depth, min(NR, N - n), to);
    }
    for (int m = first; m < last; m += MR) {
      global const float* a = packed + (ulong)m * K + (ulong)k0 * MR;
      const float* right = buf;
      for (int n = n0; n < n1; n += NR, right += step) {
        const int columns = min(NR, n1 - n);
        if (add)
          ROLLED for (int i = 0; i < MR; i++) {
            AHEAD(c + (m + i) * c_stride + n);
            AHEAD(c + (m + i) * c_stride + n + V);
          }
        vec acc[MR][NV];
        MULTIPLY(acc, a[k * MR + i], right, NR, depth);
        spill(acc, tile);
        if (has_bias)
          for (int i = 0; i < MR; i++)
            for (int j = 0; j < columns; j++)
              tile[i * NR + j] = tile[i * NR + j] * FACTOR(bias, n + j) + (k0 == 0 ? OFFSET(bias, n + j) : 0.0f);
        finish_rows(tile, c + m * c_stride + n, c_stride, min(MR, last - m), columns, NO_BIAS, add, ACTIVATION_IF(k0 + deep >= K));
      }
    }
  }
}
