/* Operands with channels in blocks of 8 (ocaffe/passes/layouts_gpu.py), and their lines: 16 bytes of neighbouring channels of a pixel.

   BLOCK_FLOAT  1: they are floats, which products round to TF32; otherwise they are in bfloat16 */
#ifndef OCAFFE_BLOCK_OPERANDS_H
#define OCAFFE_BLOCK_OPERANDS_H

#include "common.h"

#ifdef BLOCK_FLOAT
#define BLOCK_T float
#define LINE 4 /* channels of a line */
#else
#define BLOCK_T bfloat
#define LINE 8
#endif
#define LINES (8 / LINE) /* of a block */
#define ELEMENT_BYTES (16 / LINE)

/* Column n of a product belongs to this row of the filters. Of the columns of a work-item (sum_column in tile_wgmma.h), LINE then belong to neighbouring rows:
   it reads and writes the results of a pixel in whole lines. */
INLINE int row_of_column(int n) {
  const int owner = n % 8 / 2;
  return n / (4 * LINE) * (4 * LINE) + owner % (LINE / 2) * 8 + owner / (LINE / 2) * LINE + n % (4 * LINE) / 8 * 2 + n % 2;
}

/* Write a block of column `own` of packed filters. They are blocks of LINES lines of `rows` rows, and this is block `block`. Of floats the first line has the even
   channels and the second one the odd ones: a work-item then loads two neighbouring channels of a pixel for two places of a product (tile_wgmma.h). */
INLINE void put_filters(global uint* packed, ulong block, int rows, int own, float8 v) {
#ifdef BLOCK_FLOAT
  global float4* to = (global float4*)packed + block * LINES * rows + own;
  to[0] = (float4)(as_float(tf32(v.s0)), as_float(tf32(v.s2)), as_float(tf32(v.s4)), as_float(tf32(v.s6)));
  to[rows] = (float4)(as_float(tf32(v.s1)), as_float(tf32(v.s3)), as_float(tf32(v.s5)), as_float(tf32(v.s7)));
#else
  ((global uint4*)packed)[block * rows + own] = narrow8(v);
#endif
}

#endif
