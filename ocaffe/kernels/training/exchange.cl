/* The exchange of gradients over ranks (ocaffe/parallel/host_exchange.py).

   WIRE     type of the values that ranks send each other: float, or bfloat (bf16_operands.h)

   average  the average of one part, added in the order of the ranks, so that it is the same in each repetition
     own     the part on this rank, which becomes the average
     others  the parts of the other ranks in their order, `part` values apart
   convert  values of type SOURCE_T to RESULT_T
   Work-items: (count) */
#include "common.h"
#ifndef WIRE
#define WIRE float
#endif

kernel void average(OPERAND(const WIRE, others), OPERAND(WIRE, own), const int ranks, const int rank, const int part, const int count,
                    const float factor) {
  LOCATE(others);
  LOCATE(own);
  const int i = get_global_id(0);
  if (i >= count) return;
  float sum = rank == 0 ? GET(WIRE, own + i) : GET(WIRE, others + i);
  for (int q = 1; q < ranks; q++) sum += q == rank ? GET(WIRE, own + i) : GET(WIRE, others + (ulong)(q - (q > rank)) * part + i);
  SET(WIRE, own + i, sum * factor);
}

kernel void convert(OPERAND(const SOURCE_T, x), OPERAND(RESULT_T, y), const int count) {
  LOCATE(x);
  LOCATE(y);
  const int i = get_global_id(0);
  if (i < count) SET(RESULT_T, y + i, GET(SOURCE_T, x + i));
}
