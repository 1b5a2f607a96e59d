/* AMD's WMMA (RDNA 3: gfx11, RDNA 4: gfx12), see MATRIX_UNIT in tile_mma.h: products of 16 x 16 by the 32 lanes of a wave.

   LANE_WORDS  words of an operand that a lane holds: 8 on gfx11, 4 on gfx12

   The instruction computes D = A B. Lane l holds row l % 16 of A, and column l % 16 of B. On gfx11 it holds the whole depth, so lanes 16 to 31 repeat
   lanes 0 to 15; on gfx12 each half of the lanes holds half of the depth. A lane gets column l % 16 of D: on gfx11 every second row, on gfx12 eight
   neighbouring rows. Here A is the right operand and B the left one, so rows of D are columns of the tile. On gfx11 the lines of A are permuted, so that
   a lane gets eight neighbouring columns there, too. Any order of the depth is correct if both operands have it. */
#ifndef OCAFFE_TILE_WMMA_H
#define OCAFFE_TILE_WMMA_H

#ifndef LANE_WORDS
#define LANE_WORDS 8
#endif
#define WAVE 32
#define ROW(i) ((i) * 16)
#define COLUMN(j) ((j) / 8 * 16 + (j) % 8)
#define LANE_ROW(lane) ((lane) % 16)
#define LANE_COLUMN(lane) ((lane) / 16 * 8)
#define LANE_PART(lane) ((lane) / 16)
#define UNIT_COLUMNS 16
#define UNIT_SUMS 8
#define PRODUCTS 2
#define SUMS_T float8

INLINE int quad_place(int line, int quad);

#if LANE_WORDS == 8
#define LEFT_T uint8
INLINE LEFT_T wmma_fragment(local const uint4* lines, int line, int product, int lane) {
  return (uint8)(lines[quad_place(line, product * 2)], lines[quad_place(line, product * 2 + 1)]);
}
#define RIGHT_LINE(lane) ((lane) % 2 * 8 + (lane) % 16 / 2)
#else
#define LEFT_T uint4
INLINE LEFT_T wmma_fragment(local const uint4* lines, int line, int product, int lane) { return lines[quad_place(line, product * 2 + lane / 16)]; }
#define RIGHT_LINE(lane) ((lane) % 16)
#endif
#define RIGHT_T LEFT_T
#define left_fragment(lines, line, product, lane) wmma_fragment(lines, (line) + (lane) % 16, product, lane)
#define right_fragment(lines, line, product, lane) wmma_fragment(lines, (line) + RIGHT_LINE(lane), product, lane)

#ifdef EMULATED_MATRIX_UNIT
#include EMULATED_MATRIX_UNIT
INLINE float8 multiply_accumulate(LEFT_T left, RIGHT_T right, float8 sums, local uint* exchange) {
  emulate((const uint*)&right, LANE_WORDS, (const uint*)&left, LANE_WORDS, (float*)&sums, exchange);
  return sums;
}
#else
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#if LANE_WORDS == 8 && MMA == 4
#define WMMA(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(as_half16(a), as_half16(b), c)
#elif LANE_WORDS == 8
#define WMMA(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(as_short16(a), as_short16(b), c)
#elif MMA == 4
#define WMMA(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(as_half8(a), as_half8(b), c)
#else
#define WMMA(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(as_short8(a), as_short8(b), c)
#endif
INLINE float8 multiply_accumulate(LEFT_T left, RIGHT_T right, float8 sums, local uint* exchange) { return WMMA(right, left, sums); }
#endif
#endif
