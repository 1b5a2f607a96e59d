/* The second pass of a product whose depth was split over work-groups: y = sum over s of part[s]. The order is fixed, so that two runs
   give the same bits. Then the epilogue (epilogue.h) and the fused ReLU backward (fused_relu.h).

   part[splits][samples * count], y[samples][count]; count: elements of a sample
   bias is indexed by (position in the sample) / inner; inner is 1 for a bias per column, the size of a plane for a bias per channel
   One work-item per result. */
#ifndef OCAFFE_SPLIT_SUM_H
#define OCAFFE_SPLIT_SUM_H

#include "epilogue.h"
#include "fused_relu.h"

kernel void ENTRY(split_sum)(OPERAND_RESTRICT(const float, part), SIGN OPERAND_RESTRICT(const float, bias),
                      OPERAND_RESTRICT(RESULT_T, y), int splits, int samples, int count, int inner, int has_bias, int accumulate, float slope) {
  const int i = get_global_id(0);
  if (i >= samples * count) return;
  LOCATE(part), LOCATE(bias), LOCATE(y);
  LOCATE_SIGN;
  const int sample = i / count, position = i - sample * count;
  float sum = 0.0f;
#pragma unroll 4
  for (int s = 0; s < splits; ++s) sum += part[s * part_stride + i];
  sum = sum * FACTOR(bias, position / inner) + OFFSET(bias, position / inner);
  y += sample * y_stride + position;
  put(y, sum, accumulate, slope, IF_FUSED_RELU(sign + sample * sign_stride, y), position);
}

#endif
