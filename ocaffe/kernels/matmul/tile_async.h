/* The inner part of a tiled matrix product in bfloat16 on NVIDIA's tensor cores. cp.async copies operands unchanged from global to local
   memory; the copies of the next steps overlap the products. The kernels (conv_pointwise_mma.cl, conv_patch_mma.cl) fetch; this file
   multiplies.

   Tile, results of a work-item and stores: see tile_gpu.h, with MMA 2, TM = WM / 8, TN = WN / 4; WM is a multiple of 32, WN of 16, BK of 16.

   STAGES  number of steps that local memory holds; all but one are in flight

   Local memory holds chunks of 8 neighbouring elements. A line is a row of the left operand or a column of the right one. The layout is
   along   line by line, each with the 32, 16 or 8 elements of its depth: along_place(depth, line, chunk of the depth)
   across  one element of the depth after another, each with all lines, at least 64: across_place(lines, element of the depth, chunk of lines)
   Places are swizzled so that eight chunks that a warp loads or stores together use all 32 banks. `ldmatrix` distributes matrices of
   8 x 8 elements to the lanes of a warp, transposed for the layout `across`.

   After the two products of 16 columns, lane 4 g + q has columns 2 q, 2 q + 1 and 8 + 2 q, 9 + 2 q. Lanes then exchange pairs (tile_deal),
   so that each has four neighbouring columns: LANE_COLUMN.

   On compilers other than NVIDIA's, copies are synchronous and products are float multiply-adds, for tests only. */
#ifndef OCAFFE_TILE_ASYNC_H
#define OCAFFE_TILE_ASYNC_H

#ifndef STAGES
#define STAGES 3
#define MMA 2
#define BM 128
#define BN 128
#define TM 8
#define TN 8
#define WM 64
#define BK 32
#endif
/* The first of the four columns of lanes q = 0, 1, 2, 3 after tile_deal: 0, 8, 4, 12. */
#define LANE_COLUMN(lane) ((lane) % 2 * 8 + (lane) / 2 % 2 * 4)
#define OCAFFE_TILE_MMA_H /* excludes the tensor core code of tile_gpu.h */
#include "tile_gpu.h"

#define CHUNK 8
/* The name `what` with the name of type T appended. */
#define JOINED(what, T) JOINED_OF(what, T)
#define JOINED_OF(what, T) what##T
#define LOCAL_CHUNKS(name, size) local uint4 name[size]

#define ALONG_CHUNKS(lines, depth) ((lines) * (depth) / CHUNK)

/* `depth`: elements of a line: 32, 16 or 8. Eight lines are 512, 256 or 128 bytes, that is 4, 2 or 1 times all banks. */
INLINE int along_place(int depth, int line, int chunk) {
  return depth == 32 ? line * 4 + (chunk ^ (line >> 1 & 3)) : depth == 16 ? line * 2 + (chunk ^ (line >> 2 & 1)) : line;
}
INLINE int across_place(int lines, int k, int chunk) { return k * (lines / CHUNK) + (chunk ^ (k & 7)); }

/* Copy 8, 4 or 2 elements that begin at a multiple of their number, or zeros if they do not exist. The copies have arrived after
   copies_wait and a barrier. */
#ifdef __NVPTX__
#define COPY_ASYNC(kind, bytes)                                                                                                                        \
  asm volatile("cp.async." kind ".shared.global [%0], [%1], " #bytes ", %2;" ::"r"((uint)(size_t)to), "l"((ulong)(size_t)from), "r"(exist ? bytes : 0) \
               : "memory")
INLINE void copy_8(local uint4* to, global const bfloat* from, int exist) { COPY_ASYNC("cg", 16); }
INLINE void copy_4(local uint2* to, global const bfloat* from, int exist) { COPY_ASYNC("ca", 8); }
INLINE void copy_2(local uint* to, global const bfloat* from, int exist) { COPY_ASYNC("ca", 4); }
INLINE void copies_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Wait until all but the last STAGES - 2 commits have arrived. */
#define WAIT_TEXT(n) WAIT_TEXT_OF(n)
#define WAIT_TEXT_OF(n) "cp.async.wait_group " #n ";"
INLINE void copies_wait(void) {
#if STAGES == 2
  asm volatile(WAIT_TEXT(0)::: "memory");
#elif STAGES == 3
  asm volatile(WAIT_TEXT(1)::: "memory");
#else
  asm volatile(WAIT_TEXT(2)::: "memory");
#endif
}
#else
INLINE void copy_8(local uint4* to, global const bfloat* from, int exist) { *to = exist ? *(global const uint4*)from : (uint4)(0); }
INLINE void copy_4(local uint2* to, global const bfloat* from, int exist) { *to = exist ? *(global const uint2*)from : (uint2)(0); }
INLINE void copy_2(local uint* to, global const bfloat* from, int exist) { *to = exist ? *(global const uint*)from : 0; }
INLINE void copies_commit(void) {}
INLINE void copies_wait(void) {}
#endif

/* The layout of the operands `a` and `b` of a step: 1 is across, 0 is along. */
#ifndef A_ACROSS
#define A_ACROSS 0
#endif
#ifndef B_ACROSS
#define B_ACROSS 1
#endif

#ifdef __NVPTX__
INLINE uint4 load_matrices(local const uint4* p) {
  uint x, y, z, w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"((uint)(size_t)p) : "memory");
  return (uint4)(x, y, z, w);
}
INLINE uint4 load_transposed(local const uint4* p) {
  uint x, y, z, w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"((uint)(size_t)p) : "memory");
  return (uint4)(x, y, z, w);
}

/* d += a * b, 16 x 8 results over a depth of 16, by the 32 lanes of a warp. d[0] and d[1] are row g, columns 2 q and 2 q + 1; d[2] and
   d[3] are row g + 8. */
INLINE void mma_16(float d[4], uint4 a, uint b0, uint b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* Load 16 rows of the left operand from `row` on, 16 of the depth from `k` on, as the products require them. */
INLINE uint4 left_matrices(local const uint4* a, int row, int k, int lane) {
#if A_ACROSS
  return load_transposed(a + across_place(BM, k + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2));
#else
  return load_matrices(a + along_place(BK, row + lane % 16, k / 8 + lane / 16));
#endif
}

/* The same for 16 columns of the right operand: x and y are for the first product of 8 columns, z and w for the second. */
INLINE uint4 right_matrices(local const uint4* b, int column, int k, int lane) {
#if B_ACROSS
  return load_transposed(b + across_place(BN, k + lane % 16, column / 8 + lane / 16));
#else
  return load_matrices(b + along_place(BK, column + lane % 8 + lane / 16 * 8, k / 8 + lane / 8 % 2));
#endif
}

/* Add the products of all rows with 16 columns to the sums of a work-item from column `j` on. av and bv are the results of
   left_matrices and right_matrices. */
INLINE void columns_multiply(const uint4 av[TM / 2], uint4 bv, int j, float acc[TM][TN]) {
#pragma unroll
  for (int pair = 0; pair < 4; pair += 2)
#pragma unroll
    for (int i = 0; i < TM; i += 2) {
      const int c = j + pair;
      float d[4] = {acc[i][c], acc[i][c + 1], acc[i + 1][c], acc[i + 1][c + 1]};
      mma_16(d, av[i / 2], pair ? bv.z : bv.x, pair ? bv.w : bv.y);
      acc[i][c] = d[0], acc[i][c + 1] = d[1], acc[i + 1][c] = d[2], acc[i + 1][c + 1] = d[3];
    }
}

/* acc += a * b for one step. */
INLINE void chunks_multiply(local const uint4* a, local const uint4* b, float acc[TM][TN]) {
  const int item = get_local_id(0), lane = item % 32, row = item / 32 / (BN / WN) * WM, column = item / 32 % (BN / WN) * WN;
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    uint4 av[TM / 2];
#pragma unroll
    for (int i = 0; i < TM / 2; ++i) av[i] = left_matrices(a, row + i * 16, k, lane);
#pragma unroll
    for (int j = 0; j < TN; j += 4) columns_multiply(av, right_matrices(b, column + j * 4, k, lane), j, acc);
  }
}

/* Even lanes exchange the second pair of every four columns for the first pair of their odd neighbour. */
INLINE float from_neighbour(float v) {
  float r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;" : "=f"(r) : "f"(v));
  return r;
}
INLINE void tile_deal(float acc[TM][TN]) {
  const int odd = get_local_id(0) % 2;
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      const float2 first = (float2)(acc[i][j], acc[i][j + 1]), second = (float2)(acc[i][j + 2], acc[i][j + 3]), given = odd ? first : second;
      const float2 got = (float2)(from_neighbour(given.x), from_neighbour(given.y)), left = odd ? got : first, right = odd ? second : got;
      acc[i][j] = left.x, acc[i][j + 1] = left.y, acc[i][j + 2] = right.x, acc[i][j + 3] = right.y;
    }
}
#else
/* Return an element of local memory as a float. */
INLINE float element_at(local const uint4* chunks, int place, int e) { return wide(((local const bfloat*)(chunks + place))[e]); }

/* The loops are not unrolled, because this is compiled for tests only. */
static __attribute__((noinline)) void chunks_multiply(local const uint4* a, local const uint4* b, float acc[TM][TN]) {
  const int row = tile_row(get_local_id(0)), column = tile_column(get_local_id(0));
#pragma unroll 1
  for (int k = 0; k < BK; ++k)
#pragma unroll 1
    for (int i = 0; i < TM; ++i) {
      const int r = row + ROW(i);
      const float v = A_ACROSS ? element_at(a, across_place(BM, k, r / 8), r % 8) : element_at(a, along_place(BK, r, k / 8), k % 8);
#pragma unroll 1
      for (int j = 0; j < TN; ++j) {
        const int c = column + COLUMN(j);
        acc[i][j] += v * (B_ACROSS ? element_at(b, across_place(BN, k, c / 8), c % 8) : element_at(b, along_place(BK, c, k / 8), k % 8));
      }
    }
}
INLINE void tile_deal(float acc[TM][TN]) {}
#endif

#endif
