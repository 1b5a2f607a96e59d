/* AMD's MFMA (CDNA: gfx908, gfx90a, gfx942), see MATRIX_UNIT in tile_mma.h: products of 16 x 16 by the 64 lanes of a wave.

   LANE_WORDS  words of an operand that a lane holds: 2, or 1 for bfloat16 on gfx908

   The instruction computes D = A B. Lane l holds row l % 16 of A, and the part l / 16 of its depth; so for B and its columns. It gets column l % 16 of D,
   and four neighbouring rows. Here A is the right operand and B the left one, so that a lane gets four neighbouring columns of a row.
   Any order of the depth is correct if both operands have it. A lane takes a whole quad, whose words take part in one product after the other. */
#ifndef OCAFFE_TILE_MFMA_H
#define OCAFFE_TILE_MFMA_H

#ifndef LANE_WORDS
#define LANE_WORDS 2
#endif
#define WAVE 64
#define ROW(i) ((i) * 16)
#define COLUMN(j) ((j) / 4 * 16 + (j) % 4)
#define LANE_ROW(lane) ((lane) % 16)
#define LANE_COLUMN(lane) ((lane) / 16 * 4)
#define LANE_PART(lane) ((lane) / 16)
#define UNIT_COLUMNS 16
#define UNIT_SUMS 4
#define PRODUCTS (4 / LANE_WORDS)
#define SUMS_T float4

#if LANE_WORDS == 1
#define LEFT_T uint
#else
#define LEFT_T uint2
#endif
#define RIGHT_T LEFT_T

INLINE int quad_place(int line, int quad);

INLINE LEFT_T mfma_fragment(local const uint4* lines, int line, int product, int lane) {
  return ((local const LEFT_T*)(lines + quad_place(line + lane % 16, lane / 16)))[product];
}
#define left_fragment mfma_fragment
#define right_fragment mfma_fragment

#ifdef EMULATED_MATRIX_UNIT
#include EMULATED_MATRIX_UNIT
INLINE float4 multiply_accumulate(LEFT_T left, RIGHT_T right, float4 sums, local uint* exchange) {
  emulate((const uint*)&right, LANE_WORDS, (const uint*)&left, LANE_WORDS, (float*)&sums, exchange);
  return sums;
}
#else
#if MMA == 4
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define MFMA(a, b, c) __builtin_amdgcn_mfma_f32_16x16x16f16(as_half4(a), as_half4(b), c, 0, 0, 0)
#elif MMA == 1
#define MFMA(a, b, c) __builtin_amdgcn_mfma_f32_16x16x8_xf32(as_float2(a), as_float2(b), c, 0, 0, 0)
#elif LANE_WORDS == 1
#define MFMA(a, b, c) __builtin_amdgcn_mfma_f32_16x16x8bf16(as_short2(a), as_short2(b), c, 0, 0, 0)
#else
#define MFMA(a, b, c) __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(as_short4(a), as_short4(b), c, 0, 0, 0)
#endif
INLINE float4 multiply_accumulate(LEFT_T left, RIGHT_T right, float4 sums, local uint* exchange) { return MFMA(right, left, sums); }
#endif
#endif
