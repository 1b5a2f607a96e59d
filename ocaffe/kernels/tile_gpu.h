/* The inner part of a tiled matrix product for work-groups that share local memory: gemm_gpu.cl and conv_gpu.cl fetch, this multiplies.

   A work-group of NT work-items computes BM x BN results. Each step brings BK columns of the left operand and BK rows of the right one
   into local memory, both with the step's depth as the outer index: as[BK][LDA], bs[BK][LDB], in two buffers.

   BM, BN  rows and columns of a work-group          BK  depth of one step
   TM, TN  rows and columns of a work-item, multiples of 4, in chunks of 4 neighbours
   WM      rows of 32 consecutive work-items (one NVIDIA warp; elsewhere only a numbering); their columns follow
   MMA     for tile_mma.h: the tile is one of tensor cores

   An element (i, j) of a work-item's sums stands at row tile_row + ROW(i), column tile_column + COLUMN(j) of the tile. */
#ifndef OCAFFE_TILE_GPU_H
#define OCAFFE_TILE_GPU_H

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
#define LANE_ROWS (WM / TM)
#define LANE_COLUMNS (32 / LANE_ROWS)
#define WN (LANE_COLUMNS * TN)
#ifdef MMA
/* As mma.m16n8k8 leaves them: lane 4 g + q has rows g and g + 8 of each 16, and of two products' 16 columns the four from 4 q on. */
#define ROW(i) ((i) / 2 * 16 + (i) % 2 * 8)
#define LANE_ROW(lane) ((lane) / 4)
#else
#define ROW(i) ((i) / 4 * (LANE_ROWS * 4) + (i) % 4)
#define LANE_ROW(lane) ((lane) / LANE_COLUMNS * 4)
#endif
#define COLUMN(j) ((j) / 4 * (LANE_COLUMNS * 4) + (j) % 4)

/* A few more floats a row: scattered stores of a step then fall into different banks, and rows stay aligned for float4. */
#define LDA (BM + 4)
#define LDB (BN + 4)

/* Without the attribute some compilers assume 4 bytes and split each float4 access into four. */
#define LOCAL_TILE(name, size) local float name[size] __attribute__((aligned(16)))

#define INLINE static inline __attribute__((always_inline))

INLINE int tile_row(int item) { return item / 32 / (BN / WN) * WM + LANE_ROW(item % 32); }
INLINE int tile_column(int item) { return item / 32 % (BN / WN) * WN + item % 32 % LANE_COLUMNS * 4; }

#ifndef MMA
/* acc += as' * bs for one step; `a` and `b` point at this work-item's first row and column. */
INLINE void tile_multiply(local const float* a, local const float* b, float acc[TM][TN]) {
#pragma unroll
  for (int k = 0; k < BK; ++k) {
    float av[TM], bv[TN];
#pragma unroll
    for (int i = 0; i < TM; i += 4) {
      const float4 v = *(local const float4*)(a + k * LDA + ROW(i));
      av[i] = v.x, av[i + 1] = v.y, av[i + 2] = v.z, av[i + 3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      const float4 v = *(local const float4*)(b + k * LDB + COLUMN(j));
      bv[j] = v.x, bv[j + 1] = v.y, bv[j + 2] = v.z, bv[j + 3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) acc[i][j] += av[i] * bv[j];
  }
}
#endif

INLINE void tile_clear(float acc[TM][TN]) {
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
}

/* One result, and four neighbouring ones at an aligned place: added to what is there or not, then the ReLU that was merged (slope 1: none). */
INLINE void put(global float* to, float v, int accumulate, float slope) {
  if (accumulate) v += *to;
  *to = v > 0.0f ? v : slope * v;
}

INLINE void put4(global float* to, float4 v, int accumulate, float slope) {
  if (accumulate) v += *(global float4*)to;
  *(global float4*)to = select(slope * v, v, v > 0.0f);
}

/* The tile as part of a row-major matrix: `to` is the tile's corner, `rows` x `columns` of it exist, `aligned`: rows begin at float4 places. */
INLINE void tile_store(global float* to, ulong row_stride, int rows, int columns, int aligned, float acc[TM][TN], int accumulate, float slope) {
  const int row = tile_row(get_local_id(0)), column = tile_column(get_local_id(0));
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    if (row + ROW(i) >= rows) continue;
    global float* line = to + (row + ROW(i)) * row_stride + column;
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      if (aligned && column + COLUMN(j) + 4 <= columns) {
        put4(line + COLUMN(j), (float4)(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]), accumulate, slope);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (column + COLUMN(j) + e < columns) put(line + COLUMN(j) + e, acc[i][j + e], accumulate, slope);
      }
    }
  }
}

#endif
