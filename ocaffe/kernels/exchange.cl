/* The exchange of gradients over ranks: the average of one part, added in the order of the ranks, so that it is the same in each repetition.

   own     the part on this rank, which becomes the average
   others  the parts of the other ranks in their order, `part` floats apart
   Work-items: (count) */
#include "common.h"

kernel void average(OPERAND(const float, others), OPERAND(float, own), const int ranks, const int rank, const int part, const int count,
                    const float factor) {
  LOCATE(others);
  LOCATE(own);
  const int i = get_global_id(0);
  if (i >= count) return;
  float sum = rank == 0 ? own[i] : others[i];
  for (int q = 1; q < ranks; q++) sum += q == rank ? own[i] : others[(ulong)(q - (q > rank)) * part + i];
  own[i] = sum * factor;
}
