/* The inner part of a tiled matrix product on matrix units: NVIDIA's tensor cores by inline PTX, and those of other makers by the header that
   MATRIX_UNIT names. The kernels (gemm_mma.cl, conv_mma.cl) fetch the operands; this file multiplies.

   Tile, results of a work-item and stores: see tile_gpu.h. On NVIDIA TM = WM / 8, TN = WN / 4, and WM and WN are multiples of 32.

   MMA    format of the operands; sums are float (TF32 on NVIDIA: tile_gpu.h)
     1  TF32: 11 bits of mantissa, the range of float; only with MATRIX_UNIT
     2  bfloat16: 8 bits of mantissa
     4  float16: 11 bits of mantissa, infinite beyond 65504
   AHEAD  1 or 2: how many steps a step is fetched before it is multiplied; each takes registers
   LEFT_SCALE, RIGHT_SCALE  powers of two. Elements of an operand are multiplied by them before rounding, and the sums are divided by them.
          The smallest float16 is 6e-8, and gradients are often smaller

   A line is a row of the left operand or a column of the right one. A step brings 16 words of every line to local memory. A word is two
   neighbours of the depth, or one in TF32. A quad is four words, the unit that a work-item stores and loads. The order of the depth does not
   matter as long as both operands agree: on NVIDIA the first two words of a quad take part in one product, the last two in the next.

   Two lines share 128 bytes. quad_place swizzles the quads so that eight neighbouring work-items use all 32 banks. This holds for stores
   of quads of one line, of eight neighbouring lines, of every second and of every fourth line, and for the loads of a product.

   MATRIX_UNIT  "tile_mfma.h", "tile_wmma.h" or "tile_dpas.h". Such a header describes one product of a wave: the sums of LANE_ROWS rows by
                UNIT_COLUMNS columns (docs/matrix-units.md). It declares
     WAVE                          work-items of a wave
     ROW, COLUMN, LANE_ROW, LANE_COLUMN, LANE_PART   where the sums of a lane lie (tile_gpu.h): four neighbouring columns at least, in
                                   each of TM rows, LANE_ROWS apart
     UNIT_COLUMNS, PRODUCTS        columns of a product; products of a step, which divide the words of a line
     SUMS_T, UNIT_SUMS             a lane's sums of a product: UNIT_SUMS columns of a row
     LEFT_T, RIGHT_T               a lane's part of the operands
     left_fragment, right_fragment (lines, line, product, lane): load it; `line` is the product's first row or column
     multiply_accumulate           (left, right, sums, exchange): return the sums plus the product
     SUB_GROUP                     an attribute of the kernel, if the size of a wave is a choice
   EMULATED_MATRIX_UNIT  "emulated_unit.h": multiply_accumulate is a C function, for tests. Its lanes exchange operands in local memory

   Without MATRIX_UNIT, on compilers other than NVIDIA's, products are float multiply-adds of operands rounded the same way, for tests only. */
#ifndef OCAFFE_TILE_MMA_H
#define OCAFFE_TILE_MMA_H

#ifndef MMA
#define MMA 2
#define BM 64
#define BN 128
#define TM 8
#define TN 8
#define WM 64
#define BK 32
#endif
#ifdef MATRIX_UNIT
#include MATRIX_UNIT
#endif
#include "tile_gpu.h"

#ifndef AHEAD
#define AHEAD 1
#endif

/* PACK: elements of a word. */
#if MMA == 1
#define PACK 1
#else
#define PACK 2
#endif
#ifndef LEFT_SCALE
#define LEFT_SCALE 1
#endif
#ifndef RIGHT_SCALE
#define RIGHT_SCALE 1
#endif
#define WORDS 16            /* words of a line in one step: BK = WORDS * PACK */
#define QUAD (4 * PACK)     /* elements of a quad */
/* Arrays of quads, not of words: NVIDIA's compiler splits vector loads of local memory if it cannot derive the alignment from the array. */
#ifdef EMULATED_MATRIX_UNIT
#define EXCHANGE (8 * BM) /* quads from either step of the left operand to the lanes' operands, four quads each */
#define LOCAL_QUADS(name, size) local uint4 name[(size) + 4 * BM + 4 * NT]
#else
#define LOCAL_QUADS(name, size) local uint4 name[size]
#endif
#ifndef SUB_GROUP
#define SUB_GROUP
#endif

INLINE int quad_place(int line, int quad) {
  return line / 2 * 8 + ((line ^ line >> 2) & 1) * 4 + (quad ^ (line >> 1 & 3) ^ (line >> 3 & 1) * 2 ^ (line >> 4 & 1));
}

/* Conversion of elements to a word. For MMA 1 it is `tf32` (bf16_operands.h). */
#if MMA == 1
#elif defined(__NVPTX__)
INLINE uint two_halves(float low, float high) {
  uint r;
#if MMA == 2
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
  return r;
}
#elif defined(MATRIX_UNIT) && !defined(EMULATED_MATRIX_UNIT)
#if MMA == 2
INLINE uint two_halves(float low, float high) { return narrow2((float2)(low, high)); }
#else
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
INLINE uint two_halves(float low, float high) { return as_uint(convert_half2((float2)(low, high))); }
#endif
#else
/* Round to the nearest number of 16 bits, ties to even. */
#if MMA == 2
INLINE uint sixteen(float v) {
  const uint u = as_uint(v);
  return isnan(v) ? 0x7fc0u : isinf(v) ? u >> 16 : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}
#else
/* Below 2^-14 float16 has the spacing of a float sum with 0.5, so adding 0.5 rounds. */
INLINE uint sixteen(float v) {
  const float size = fabs(v);
  const uint sign = as_uint(v) >> 16 & 0x8000u, u = as_uint(size);
  if (isnan(v)) return 0x7e00u;
  if (size >= 65520.0f) return sign | 0x7c00u;
  return sign | (size < 0x1p-14f ? as_uint(size + 0.5f) - as_uint(0.5f) : ((u + 0xfffu + (u >> 13 & 1)) >> 13) - (112u << 10));
}
#endif

INLINE uint two_halves(float low, float high) { return sixteen(high) << 16 | sixteen(low); }
#endif

/* WORD_OF(T), QUAD_OF(T)  (v, scale): convert elements of type T (bf16_operands.h) to a word or a quad. Elements that are already 16 bits
   wide are not converted and never scaled. */
#define WORD_OF(T) JOINED(word_of_, T)
#define QUAD_OF(T) JOINED(quad_of_, T)
#define JOINED(what, T) JOINED_OF(what, T)
#define JOINED_OF(what, T) what##T
#if MMA == 1
INLINE uint word_of_float(const float v[PACK], float scale) { return tf32(v[0] * scale); }
INLINE uint word_of_bfloat(const bfloat v[PACK], float scale) { return (uint)v[0] << 16; }
#else
INLINE uint word_of_float(const float v[PACK], float scale) { return two_halves(v[0] * scale, v[1] * scale); }
INLINE uint word_of_bfloat(const bfloat v[PACK], float scale) { return (uint)v[0] | (uint)v[1] << 16; }
#endif
#define QUADS_OF(T)                                                                                                                             \
  INLINE uint4 quad_of_##T(const T v[QUAD], float scale) {                                                                                      \
    return (uint4)(WORD_OF(T)(v, scale), WORD_OF(T)(v + PACK, scale), WORD_OF(T)(v + 2 * PACK, scale), WORD_OF(T)(v + 3 * PACK, scale));        \
  }
QUADS_OF(float)
QUADS_OF(bfloat)

/* Return element `e` of the depth of a stored quad as a float. */
INLINE float element_of(local const uint4* lines, int line, int quad, int e) {
  const uint word = ((local const uint*)(lines + quad_place(line, quad)))[e / PACK];
#if MMA == 2
  return as_float(e % 2 ? word & 0xffff0000u : word << 16);
#else
  const uint half_bits = word >> (e % 2 * 16) & 0xffffu, sign = (half_bits & 0x8000u) << 16, size = half_bits & 0x7fffu;
  return as_float(sign | (size >= 0x7c00u ? 0x7f800000u | size << 13 : as_uint(as_float(size << 13) * 0x1p112f)));
#endif
}

#if defined(MATRIX_UNIT)
#ifdef EMULATED_MATRIX_UNIT
#define UNIT_UNROLL _Pragma("unroll 1") /* CPU runtimes compile barriers in unrolled loops for minutes */
#else
#define UNIT_UNROLL _Pragma("unroll")
#endif
/* A wave multiplies its WM rows by its WN columns, product by product. */
INLINE void quads_multiply_unit(local const uint4* a, local const uint4* b, float acc[TM][TN]) {
  const int wave = get_local_id(0) / WAVE, lane = get_local_id(0) % WAVE;
  const int row = wave / (BN / WN) * WM, column = wave % (BN / WN) * WN;
#ifdef EMULATED_MATRIX_UNIT
  local uint* exchange = (local uint*)(a + EXCHANGE);
#else
  local uint* exchange = 0;
#endif
  UNIT_UNROLL for (int p = 0; p < PRODUCTS; ++p) {
    LEFT_T left[TM];
    RIGHT_T right[TN / UNIT_SUMS];
    UNIT_UNROLL for (int i = 0; i < TM; ++i) left[i] = left_fragment(a, row + i * LANE_ROWS, p, lane);
    UNIT_UNROLL for (int j = 0; j < TN / UNIT_SUMS; ++j) right[j] = right_fragment(b, column + j * UNIT_COLUMNS, p, lane);
    UNIT_UNROLL for (int j = 0; j < TN / UNIT_SUMS; ++j) UNIT_UNROLL for (int i = 0; i < TM; ++i) {
      SUMS_T v;
#pragma unroll
      for (int e = 0; e < UNIT_SUMS; ++e) v[e] = acc[i][j * UNIT_SUMS + e];
      v = multiply_accumulate(left[i], right[j], v, exchange);
#pragma unroll
      for (int e = 0; e < UNIT_SUMS; ++e) acc[i][j * UNIT_SUMS + e] = v[e];
    }
  }
}
#elif !defined(__NVPTX__)
/* The loops stay rolled: this is compiled for tests only. */
static __attribute__((noinline)) void quads_multiply_fma(local const uint4* a, local const uint4* b, float acc[TM][TN]) {
  const int row = tile_row(get_local_id(0)), column = tile_column(get_local_id(0));
#pragma unroll 1
  for (int k = 0; k < BK; ++k)
#pragma unroll 1
    for (int i = 0; i < TM; ++i) {
      const float v = element_of(a, row + ROW(i), k / QUAD, k % QUAD);
#pragma unroll 1
      for (int j = 0; j < TN; ++j) acc[i][j] += v * element_of(b, column + COLUMN(j), k / QUAD, k % QUAD);
    }
}
#else
/* d += a * b, 16 x 8 results over 8 words of the depth, by the 32 lanes of a warp. */
INLINE void mma_words(float d[4], const uint a[4], const uint b[2]) {
#if MMA == 2
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Lane 4 g + q has rows g and g + 8 of each 16, and four columns, from 4 q on, of each 16. Each of two products yields two of the four. */
INLINE void quads_multiply_mma(local const uint4* a, local const uint4* b, float acc[TM][TN]) {
  const int item = get_local_id(0), lane = item % 32, g = lane / 4, q = lane % 4, m = g / 2;
  a += item / 32 / (BN / WN) * (WM * 4) + m * 8 + ((g ^ g >> 2) & 1) * 4;
  b += item / 32 % (BN / WN) * (WN * 4) + m * 16 + ((g ^ m) & 1) * 4;
  const int a_quad = q ^ (m & 3), b_quad = q ^ ((m ^ m >> 1) & 1) * 2;
  uint4 av[TM];
#pragma unroll
  for (int i = 0; i < TM; ++i) av[i] = a[i * 32 + (a_quad ^ (i % 2 * 2 ^ (i / 2 & 1)))];
  /* Multiply several columns by the first half of their depth before the second half, because each product waits for the preceding
   product of the same sums. */
#pragma unroll
  for (int j0 = 0; j0 < TN / 2; j0 += 16 / TM) {
    uint4 bv[16 / TM];
#pragma unroll
    for (int j = j0; j < j0 + 16 / TM; ++j) bv[j - j0] = b[j / 2 * 64 + j % 2 * 8 + (b_quad ^ ((j % 2) ^ (j / 2 & 1)))];
#pragma unroll
    for (int half_quad = 0; half_quad < 2; ++half_quad)
#pragma unroll
      for (int j = j0; j < j0 + 16 / TM; ++j) {
        const uint4 v = bv[j - j0];
        const uint bh[2] = {half_quad ? v.z : v.x, half_quad ? v.w : v.y};
        const int c = j / 2 * 4 + j % 2 * 2;
#pragma unroll
        for (int i = 0; i < TM; i += 2) {
          const uint ah[4] = {half_quad ? av[i].z : av[i].x, half_quad ? av[i + 1].z : av[i + 1].x, half_quad ? av[i].w : av[i].y,
                              half_quad ? av[i + 1].w : av[i + 1].y};
          float d[4] = {acc[i][c], acc[i][c + 1], acc[i + 1][c], acc[i + 1][c + 1]};
          mma_words(d, ah, bh);
          acc[i][c] = d[0], acc[i][c + 1] = d[1], acc[i + 1][c] = d[2], acc[i + 1][c + 1] = d[3];
        }
      }
  }
}
#endif

/* How the quads of an operand of `lines` lines are divided among work-items, QUADS each:
   along   neighbouring work-items take the quads of a line; for operands whose depth is contiguous
   across  each work-item takes QUADS neighbouring lines, as vectors of QUADS elements; for operands whose lines are neighbours in memory
   single  each work-item takes one line, neighbours take neighbours */
#define QUADS(lines) ((lines) * 4 / NT)

typedef struct { int line, next_line, quad, next_quad; } Share;

INLINE Share share_along(void) {
  const int item = get_local_id(0);
  return (Share){item / 4, NT / 4, item % 4, 0};
}

INLINE Share share_across(int lines) {
  const int item = get_local_id(0);
  return (Share){item % (NT / 4) * QUADS(lines), 1, item / (NT / 4), 0};
}

INLINE Share share_single(int lines) {
  const int item = get_local_id(0);
  return (Share){item % lines, 0, item / lines, NT / lines};
}

INLINE void places_of(Share share, int count, int places[]) {
#pragma unroll
  for (int i = 0; i < count; ++i) places[i] = quad_place(share.line + i * share.next_line, share.quad + i * share.next_quad);
}

/* FETCH(4, T), FETCH(2, T)  (p, n, whole): return four or two neighbours, of which `n` exist. The conditions are outside of the result
                            arrays, so that compilers keep these in registers
   FETCH(along, T), FETCH(across, T)  (v, count, p, stride, lines, depth, whole): fetch a share. `p` is the place of the work-item's first
                            element; `lines` and `depth` say how many exist from there on; `whole`: all exist, and vectors are aligned
   STORE_QUADS(T)           (to, places, v, count, scale): store a fetched share
   T is the type of the operand in memory, and of the elements until they become words. */
#define FETCH(what, T) FETCH_OF(what, T)
#define FETCH_OF(what, T) fetch_##what##_##T
#define STORE_QUADS(T) JOINED(store_quads_, T)
#define FETCHES(T)                                                                                                              \
  INLINE T##4 fetch_4_##T(global const T* p, int n, int whole) {                                                                \
    return whole ? *(global const T##4*)p : (T##4)(n > 0 ? p[0] : 0, n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0);      \
  }                                                                                                                             \
  INLINE T##2 fetch_2_##T(global const T* p, int n, int whole) {                                                                \
    return whole ? *(global const T##2*)p : (T##2)(n > 0 ? p[0] : 0, n > 1 ? p[1] : 0);                                          \
  }                                                                                                                             \
  INLINE void fetch_along_##T(T v[][QUAD], int count, global const T* p, ulong stride, int lines, int depth, int whole) {       \
    _Pragma("unroll") for (int i = 0; i < count; ++i) _Pragma("unroll") for (int e = 0; e < QUAD; e += 4) {                     \
      const T##4 w = fetch_4_##T(p + i * (NT / 4) * stride + e, i * (NT / 4) < lines ? depth - e : 0, whole);                   \
      v[i][e] = w.x, v[i][e + 1] = w.y, v[i][e + 2] = w.z, v[i][e + 3] = w.w;                                                   \
    }                                                                                                                           \
  }                                                                                                                             \
  INLINE void fetch_across_##T(T v[][QUAD], int count, global const T* p, ulong stride, int lines, int depth, int whole) {      \
    _Pragma("unroll") for (int e = 0; e < QUAD; ++e) {                                                                          \
      const int n = e < depth ? lines : 0;                                                                                      \
      if (count == 4) {                                                                                                         \
        const T##4 w = fetch_4_##T(p + e * stride, n, whole);                                                                   \
        v[0][e] = w.x, v[1][e] = w.y, v[2][e] = w.z, v[3][e] = w.w;                                                             \
      } else if (count == 2) {                                                                                                  \
        const T##2 w = fetch_2_##T(p + e * stride, n, whole);                                                                   \
        v[0][e] = w.x, v[1][e] = w.y;                                                                                           \
      } else {                                                                                                                  \
        v[0][e] = n > 0 ? p[e * stride] : 0;                                                                                    \
      }                                                                                                                         \
    }                                                                                                                           \
  }                                                                                                                             \
  INLINE void store_quads_##T(local uint4* to, const int places[], T v[][QUAD], int count, float scale) {                       \
    _Pragma("unroll") for (int i = 0; i < count; ++i) to[places[i]] = QUAD_OF(T)(v[i], scale);                                  \
  }
FETCHES(float)
FETCHES(bfloat)

/* acc += a * b for one step. */
INLINE void quads_multiply(local const uint4* a, local const uint4* b, float acc[TM][TN]) {
#if defined(MATRIX_UNIT)
  quads_multiply_unit(a, b, acc);
#elif defined(__NVPTX__)
  quads_multiply_mma(a, b, acc);
#else
  quads_multiply_fma(a, b, acc);
#endif
}

INLINE void tile_unscale(float acc[TM][TN]) {
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) acc[i][j] *= 1.0f / (LEFT_SCALE * RIGHT_SCALE);
}

#endif
