/* The inner part of a tiled matrix product for work-groups that share local memory. The kernels (gemm_gpu.cl, conv_gpu.cl) fetch the
   operands; this file multiplies and stores.

   A work-group of NT work-items computes BM x BN results. Each step brings BK columns of the left operand and BK rows of the right one
   to local memory, both with the depth as the outer index: as[BK][LDA], bs[BK][LDB], double buffered. Elements are stored there as
   `staged` returns them, columns of the right operand at RIGHT_COLUMN.

   BM, BN  rows and columns of a work-group          BK  depth of one step
   TM, TN  rows and columns of a work-item, multiples of 4, in chunks of 4 neighbours
   WM      rows of WAVE consecutive work-items; WN, their columns, follows. WAVE is 32 (a warp on NVIDIA, only a numbering elsewhere) unless a
           matrix unit says otherwise (tile_mma.h), which also says where the results of a lane lie
   MMA     NVIDIA's tensor cores by inline PTX; TM = WM / 8, TN = WN / 4, BK a multiple of 8
     1  operands in TF32 (11 bits of mantissa)
     3  each operand is the sum of two TF32 numbers; three products, summed in float. As exact as float (Ootomo and Yokota, "Recovering
        single precision accuracy from Tensor Cores", 2022)
   LEVELS  2: two-level summation. The sums of the last CARRY steps are kept apart and then added to the others, so that fewer additions
           round the large sums. This costs registers: with 32 sums 125 instead of 95, on tensor cores 166 instead of 127 to 160.
           A work-item's sums are acc[SUM_ROWS][TN] until tile_is_done, then acc[TM][TN]
   REGISTERS  maximum number of registers of a work-item, a compiler option on NVIDIA (ocaffe/cl/program.py). The compiler ignores it for
              kernels that declare their work-group size, so GROUP_OF_NT is empty then
   DEPTH_UNROLL  steps of the depth that tile_multiply_fma unrolls; without it the whole loop. Compilers other than NVIDIA's load all operands of an
                 unrolled loop first, which takes twice the registers (ocaffe/kernels/matmul/families.py)
   GRF        registers of a thread, a compiler option on Intel's GPUs (ocaffe/cl/program.py)
   SUB_GROUP  work-items of a thread, on Intel's GPUs
   DEVICE_FENCE  last-block reduction (common.h): several groups compute parts of the sums of a tile, and the last adds them (tile_join)

   With MMA 3, Inf * 1 would be NaN, since the second part of 1 is 0. So a tile in which any sum is not finite is recomputed with float
   multiply-adds:
   for (int exact = 0;; exact = 1) { clear, all steps with tile_multiply(..., exact); if (tile_is_done(...)) break; }

   Element (i, j) of a work-item's sums is at row tile_row + ROW(i), column tile_column + COLUMN(j) of the tile. */
#ifndef OCAFFE_TILE_GPU_H
#define OCAFFE_TILE_GPU_H

#include "epilogue.h"
#include "fused_relu.h"

#ifndef BM
#define BM 64
#endif
#ifndef BN
#define BN 64
#endif
#ifndef BK
#define BK 8
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 8
#endif
#ifndef WM
#define WM 32
#endif

#define NT ((BM / TM) * (BN / TN))
#ifdef SUB_GROUP
#define OF_NT __attribute__((reqd_work_group_size(NT, 1, 1), intel_reqd_sub_group_size(SUB_GROUP)))
#else
#define OF_NT __attribute__((reqd_work_group_size(NT, 1, 1)))
#endif
#ifdef REGISTERS
#define GROUP_OF_NT
#else
#define GROUP_OF_NT OF_NT
#endif
#ifndef WAVE
#define WAVE 32
#endif
#define LANE_ROWS (WM / TM)
#define LANE_COLUMNS (WAVE / LANE_ROWS)
#define WN (LANE_COLUMNS * TN)
#ifdef MMA
#ifndef ROW
/* The layout of mma.m16n8k8's results: lane 4 g + q has rows g and g + 8 of each 16, and four columns, from 4 q on, of the 16 columns of
   two products. */
#define ROW(i) ((i) / 2 * 16 + (i) % 2 * 8)
#define LANE_ROW(lane) ((lane) / 4)
#endif
#define PADDING 8
/* The place of a column in row k of bs. Odd rows swap pairs of columns: of four columns a product reads either the first or the last
   two, so without the swap lanes q and q + 1 would use the same banks. */
#define RIGHT_COLUMN(k, column) ((column) ^ ((k) & 1) * 2)
#else
#define RIGHT_COLUMN(k, column) (column)
#define ROW(i) ((i) / 4 * (LANE_ROWS * 4) + (i) % 4)
#define LANE_ROW(lane) ((lane) / LANE_COLUMNS * 4)
#define PADDING 4
#endif
#ifndef LANE_COLUMN
#define LANE_COLUMN(lane) ((lane) % LANE_COLUMNS * 4)
#endif
#ifndef COLUMN
#define COLUMN(j) ((j) / 4 * (LANE_COLUMNS * 4) + (j) % 4)
#endif
#ifndef LANE_PART
#define LANE_PART(lane) lane % LANE_COLUMNS /* a number from 0 to LANE_COLUMNS - 1, different for the lanes that share a row */
#endif

#ifndef LEVELS
#define LEVELS 1
#endif
#define SUM_ROWS (LEVELS * TM)
#define CARRY 8

/* Row lengths are padded, so that the scattered stores of a step use different banks and rows stay aligned for float4. */
#define LDA (BM + PADDING)
#define LDB (BN + PADDING)

/* Without the attribute some compilers assume an alignment of 4 bytes and split each float4 access into four. */
#define LOCAL_TILE(name, size) local float name[size] __attribute__((aligned(16)))

INLINE int tile_row(int item) { return item / WAVE / (BN / WN) * WM + LANE_ROW(item % WAVE); }
INLINE int tile_column(int item) { return item / WAVE % (BN / WN) * WN + LANE_COLUMN(item % WAVE); }

INLINE void tile_multiply_fma(local const float* a, local const float* b, float acc[TM][TN]) {
#ifdef DEPTH_UNROLL
#pragma unroll DEPTH_UNROLL
#else
#pragma unroll
#endif
  for (int k = 0; k < BK; ++k) {
    float av[TM], bv[TN];
#pragma unroll
    for (int i = 0; i < TM; i += 4) {
#ifdef MMA
#pragma unroll
      for (int e = 0; e < 4 && i + e < TM; ++e) av[i + e] = a[k * LDA + ROW(i + e)];
#else
      const float4 v = *(local const float4*)(a + k * LDA + ROW(i));
      av[i] = v.x, av[i + 1] = v.y, av[i + 2] = v.z, av[i + 3] = v.w;
#endif
    }
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      const float4 v = *(local const float4*)(b + k * LDB + COLUMN(j));
      const int x = RIGHT_COLUMN(k, 0), y = RIGHT_COLUMN(k, 1), z = RIGHT_COLUMN(k, 2), w = RIGHT_COLUMN(k, 3);
      bv[j + x] = v.x, bv[j + y] = v.y, bv[j + z] = v.z, bv[j + w] = v.w;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) acc[i][j] += av[i] * bv[j];
  }
}

#if defined(MMA) && !defined(OCAFFE_TILE_MMA_H)
/* d += a * b, 16 x 8 x 8, by the 32 lanes of a warp. */
INLINE void mma(float d[4], const uint a[4], const uint b[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Round to the nearest TF32 number, the first part of a float. The remainder is the second part; tensor cores read its leading bits.
   If the first part were truncated, the omitted product of the two remainders would be four times as large. It would also always have the
   sign of the whole product. */
INLINE uint leading(float v) {
#if MMA == 1
  uint r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
#else
  return (as_uint(v) + 0x1000u) & 0xffffe000u;
#endif
}

/* Tensor cores truncate bits that do not fit a sum (Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021). So they sum the
   three products only over a depth of SLICES * 8, the small products first. These sums are added to the accumulators in float. SLICES is 2
   because each addition to an accumulator rounds it, which is worse. */
#define SLICES (MMA == 3 && BK % 16 == 0 ? 2 : 1)

INLINE void tile_multiply_mma(local const float* a, local const float* b, float acc[TM][TN]) {
  const int lane = get_local_id(0) % 32, g = lane / 4, q = lane % 4;
  a += q * LDA;
  b += q * LDB - 4 * q + g / 2 * 4 + g % 2;
  local const float* pairs[2] = {b + RIGHT_COLUMN(q, 0), b + RIGHT_COLUMN(q, 2)};
#pragma unroll
  for (int k = 0; k < BK; k += 8 * SLICES) {
    uint ah[SLICES][TM / 2][4];
#if MMA == 3
    uint al[SLICES][TM / 2][4];
#endif
#pragma unroll
    for (int s = 0; s < SLICES; ++s)
#pragma unroll
      for (int i = 0; i < TM / 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float v = a[(k + s * 8 + e / 2 * 4) * LDA + i * 16 + e % 2 * 8];
          ah[s][i][e] = MMA == 1 ? as_uint(v) : leading(v);
#if MMA == 3
          al[s][i][e] = as_uint(v - as_float(ah[s][i][e]));
#endif
        }
#pragma unroll
    for (int j = 0; j < TN / 2; ++j) {
      const int c = j / 2 * 4 + j % 2 * 2;
      uint bh[SLICES][2];
#if MMA == 3
      uint bl[SLICES][2];
#endif
#pragma unroll
      for (int s = 0; s < SLICES; ++s)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float v = pairs[j % 2][(k + s * 8 + e * 4) * LDB + j / 2 * 16];
          bh[s][e] = MMA == 1 ? as_uint(v) : leading(v);
#if MMA == 3
          bl[s][e] = as_uint(v - as_float(bh[s][e]));
#endif
        }
#pragma unroll
      for (int i = 0; i < TM / 2; ++i) {
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#if MMA == 3
#pragma unroll
        for (int s = 0; s < SLICES; ++s) {
          mma(d, al[s][i], bh[s]);
          mma(d, ah[s][i], bl[s]);
        }
#else
        d[0] = acc[2 * i][c], d[1] = acc[2 * i][c + 1], d[2] = acc[2 * i + 1][c], d[3] = acc[2 * i + 1][c + 1];
#endif
#pragma unroll
        for (int s = 0; s < SLICES; ++s) mma(d, ah[s][i], bh[s]);
#if MMA == 3
        acc[2 * i][c] += d[0], acc[2 * i][c + 1] += d[1], acc[2 * i + 1][c] += d[2], acc[2 * i + 1][c + 1] += d[3];
#else
        acc[2 * i][c] = d[0], acc[2 * i][c + 1] = d[1], acc[2 * i + 1][c] = d[2], acc[2 * i + 1][c + 1] = d[3];
#endif
      }
    }
  }
}
#endif

/* Return an element in the form in which it is stored in local memory. */
INLINE float staged(float v) {
#if defined(MMA) && !defined(OCAFFE_TILE_MMA_H) && MMA == 1
  return as_float(leading(v));
#else
  return v;
#endif
}

/* acc += as' * bs for step `step`, counted from 1; `a` and `b` point at this work-item's first row and column. */
INLINE void tile_multiply(local const float* a, local const float* b, float acc[SUM_ROWS][TN], int step, int exact) {
#if defined(MMA) && !defined(OCAFFE_TILE_MMA_H)
  if (!exact)
    tile_multiply_mma(a, b, acc);
  else
#endif
    tile_multiply_fma(a, b, acc);
  if (step % CARRY == 0) {
#pragma unroll
    for (int i = TM; i < SUM_ROWS; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) acc[i][j] += acc[i - TM][j], acc[i - TM][j] = 0.0f;
  }
}

/* Return whether the sums are final; the result is the same for the whole group. `vote` is local memory that is free now. */
INLINE int tile_is_done(float acc[SUM_ROWS][TN], int exact, local float* vote) {
#pragma unroll
  for (int i = TM; i < SUM_ROWS; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) acc[i - TM][j] += acc[i][j];
#if defined(MMA) && MMA == 3
  if (exact) return 1;
  float sign = 0.0f;
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) sign += 0.0f * acc[i][j]; /* NaN if a sum is not finite */
  if (get_local_id(0) == 0) *vote = 0.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (isnan(sign)) *vote = 1.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  const int done = *vote == 0.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  return done;
#else
  return 1;
#endif
}

INLINE void tile_clear(float acc[SUM_ROWS][TN]) {
#pragma unroll
  for (int i = 0; i < SUM_ROWS; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
}

#ifdef DEVICE_FENCE
/* Store the sums in `all`[slot] and count in `counters`. Return 1 in the last of `count` groups, where `acc` becomes the sum of `all`[first],
   `all`[first + apart], ..., in this order. Each work-item reads and writes only its own places in `all`. */
INLINE int tile_sum_in_last_block(global uint* counters, global float4* all, int slot, int first, int apart, int count, float acc[TM][TN], local float* vote) {
  const int step = BM * BN / 4;
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; j += 4) all[slot * step + (i * TN + j) / 4 * NT] = (float4)(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
  IS_LAST_BLOCK(DEVICE_FENCE, counters, count, (local int*)vote, last);
  if (!last) return 0;
  /* Read four float4 of each of four parts at a time: 16 loads are in flight, with no more registers than the products need. */
#pragma unroll
  for (int c = 0; c < TM * TN / 4; c += 4) {
    float4 sum[4], v[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = (float4)(0.0f);
    for (int p = 0; p < count; p += 4) {
#pragma unroll
      for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int e = 0; e < 4; ++e) v[q][e] = all[(first + min(p + q, count - 1) * apart) * step + (c + e) * NT];
#pragma unroll
      for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += p + q < count ? v[q][e] : (float4)(0.0f);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = (c + e) * 4 / TN, j = (c + e) * 4 % TN;
      acc[i][j] = sum[e].x, acc[i][j + 1] = sum[e].y, acc[i][j + 2] = sum[e].z, acc[i][j + 3] = sum[e].w;
    }
  }
  return 1;
}

/* Add up the `count` parts of the depth of a tile, of which this group has part `part`. Return 1 to the group that has the whole sum in
   `acc`. Parts are added in two stages, because one group reads slowly: the last group of each bunch of parts adds that bunch, then the
   last bunch adds the bunches. Layout: parts[tile][part][BM * BN]; a tile has a counter per bunch and one more (gemm_gpu.bunches). */
INLINE int tile_join(global uint* counters, global float* parts, int tile, int part, int count, float acc[TM][TN], local float* vote) {
  int bunch = 8;
  while (bunch * bunch < count) ++bunch;
  const int bunches = (count + bunch - 1) / bunch, own = part / bunch, first = own * bunch;
  global float4* all = (global float4*)(parts + (ulong)tile * count * (BM * BN)) + get_local_id(0);
  counters += tile * (bunches + 1);
  if (!tile_sum_in_last_block(counters + own, all, part, first, 1, min(bunch, count - first), acc, vote)) return 0;
  return bunches == 1 || tile_sum_in_last_block(counters + bunches, all, first, 0, bunch, bunches, acc, vote);
}
#endif

/* Apply offsets, and factors if there are any (epilogue.h), to the tile's columns. `bias` points at that of the first column; `columns` of them exist. */
INLINE void tile_bias(float acc[TM][TN], int columns, global const float* bias, ulong bias_stride, int has_bias) {
#pragma unroll
  for (int j = 0; j < TN; ++j) {
    const int n = tile_column(get_local_id(0)) + COLUMN(j);
    const float factor = n < columns ? FACTOR(bias, n) : 0.0f, offset = n < columns ? OFFSET(bias, n) : 0.0f;
#pragma unroll
    for (int i = 0; i < TM; ++i) acc[i][j] = acc[i][j] * factor + offset;
  }
}

/* Store the tile into a row-major matrix. `to` is the tile's corner, and `rows` x `columns` of the tile exist. `aligned`: rows begin at
   multiples of 4 elements. Each row is a sample of `sign` (fused_relu.h), sign_stride apart; the tile begins at element `first` of it. */
INLINE void tile_store(global RESULT_T* to, ulong row_stride, int rows, int columns, int aligned, float acc[TM][TN], int accumulate, float slope,
                       global const SIGNS_T* sign, ulong sign_stride, int first) {
  const int row = tile_row(get_local_id(0)), column = tile_column(get_local_id(0));
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    if (row + ROW(i) >= rows) continue;
    global RESULT_T* line = to + (row + ROW(i)) * row_stride + column;
    global const SIGNS_T* signs = sign + (row + ROW(i)) * sign_stride;
    const int element = first + column;
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      if (aligned && column + COLUMN(j) + 4 <= columns) {
        put4(line + COLUMN(j), (float4)(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]), accumulate, slope, signs, element + COLUMN(j));
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (column + COLUMN(j) + e < columns) put(line + COLUMN(j) + e, acc[i][j + e], accumulate, slope, signs, element + COLUMN(j) + e);
      }
    }
  }
}

#endif
