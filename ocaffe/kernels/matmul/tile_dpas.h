/* Intel's DPAS (Xe-HPG, Xe-HPC, Xe2) by cl_intel_subgroup_matrix_multiply_accumulate, see MATRIX_UNIT in tile_mma.h: products of WAVE rows by 8 columns.

   WAVE  work-items of a sub-group: 8 on Xe-HPG (dg2), 16 on Xe-HPC and Xe2 (pvc, bmg)

   The function computes acc + a b. Lane l holds column l of b over the whole depth, and it gets column l of the result: eight neighbouring rows.
   Component m of a's vector is row m, whose depth is divided among the lanes: a word each with 8 lanes, 16 bits each with 16. In TF32 a component has
   two rows of eight words. Here a is the right operand and b the left one, so a lane gets eight neighbouring columns of a row. */
#ifndef OCAFFE_TILE_DPAS_H
#define OCAFFE_TILE_DPAS_H

#ifndef WAVE
#define WAVE 16
#endif
#define ROW(i) ((i) * WAVE)
#define COLUMN(j) (j)
#define LANE_ROW(lane) (lane)
#define LANE_COLUMN(lane) 0
#define LANE_PART(lane) 0
#define UNIT_COLUMNS 8
#define UNIT_SUMS 8
#define PRODUCTS 2
#define SUMS_T float8
#define LEFT_T uint8

INLINE int quad_place(int line, int quad);

INLINE LEFT_T left_fragment(local const uint4* lines, int line, int product, int lane) {
  return (uint8)(lines[quad_place(line + lane, product * 2)], lines[quad_place(line + lane, product * 2 + 1)]);
}

#if MMA == 1
#define RIGHT_T uint4
#define RIGHT_WORDS 4
INLINE RIGHT_T right_fragment(local const uint4* lines, int line, int product, int lane) {
  RIGHT_T v;
#pragma unroll
  for (int e = 0; e < 4; ++e) v[e] = ((local const uint*)(lines + quad_place(line + e * 2 + lane / 8, product * 2 + lane % 8 / 4)))[lane % 4];
  return v;
}
#elif WAVE == 8
#define RIGHT_T uint8
#define RIGHT_WORDS 8
INLINE RIGHT_T right_fragment(local const uint4* lines, int line, int product, int lane) {
  RIGHT_T v;
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = ((local const uint*)(lines + quad_place(line + e, product * 2 + lane / 4)))[lane % 4];
  return v;
}
#else
#define RIGHT_T ushort8
#define RIGHT_WORDS 4
INLINE RIGHT_T right_fragment(local const uint4* lines, int line, int product, int lane) {
  RIGHT_T v;
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = ((local const ushort*)(lines + quad_place(line + e, product * 2 + lane / 8)))[lane % 8];
  return v;
}
#endif

#ifdef EMULATED_MATRIX_UNIT
#include EMULATED_MATRIX_UNIT
INLINE float8 multiply_accumulate(LEFT_T left, RIGHT_T right, float8 sums, local uint* exchange) {
  emulate((const uint*)&right, RIGHT_WORDS, (const uint*)&left, 8, (float*)&sums, exchange);
  return sums;
}
#else
#define SUB_GROUP __attribute__((intel_reqd_sub_group_size(WAVE)))
#if MMA == 1
#define DPAS(a, b, c) intel_sub_group_tf32_tf32_matrix_mad_k8(as_float4(a), as_float8(b), c)
#elif MMA == 2 && WAVE == 8
#define DPAS(a, b, c) intel_sub_group_bf16_bf16_matrix_mad_k16(as_int8(a), as_int8(b), c)
#elif MMA == 2
#define DPAS(a, b, c) intel_sub_group_bf16_bf16_matrix_mad_k16(as_short8(a), as_int8(b), c)
#elif WAVE == 8
#define DPAS(a, b, c) intel_sub_group_f16_f16_matrix_mad_k16(as_int8(a), as_int8(b), c)
#else
#define DPAS(a, b, c) intel_sub_group_f16_f16_matrix_mad_k16(as_short8(a), as_int8(b), c)
#endif
INLINE float8 multiply_accumulate(LEFT_T left, RIGHT_T right, float8 sums, local uint* exchange) { return DPAS(right, left, sums); }
#endif
#endif
