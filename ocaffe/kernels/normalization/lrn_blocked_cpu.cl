/* LRN across channels for CPU runtimes on images whose channels are in blocks of V (docs/kernels.md, Channels in blocks on CPUs); for the formula see lrn.cl.

   Defines: see lrn_across.h. SIZE is at most 2 V + 1: the windows of a block reach no further than the next blocks.

   Work-items: (spans of `span` pixels, samples). Each takes V pixels at a time through the blocks, transposed, so that the lanes of a vector are pixels.
   It reads a block before it writes the one before, so y may be x. */
#include "common.h"

#define NV 1
#define MR 1
#include "tile_cpu.h"
#define VALUE vec
#include "lrn_across.h"

/* to = a block of V pixels, a vector for each channel. Pixels from `count` on are 0. */
INLINE void OWN(read_block)(vec to[V], global const float* from, int count) {
#pragma unroll
  for (int i = 0; i < V; i++) {
    to[i] = (vec)(0);
    if (i < count) to[i] = GLOBAL(from + i * V);
  }
  transpose(to);
}

SINGLE void ENTRY(forward)(OPERAND(const float, x), OPERAND(float, y), int channels, int plane, int span, float share, float k, float beta) {
  LOCATE(x); LOCATE(y);
  const int first = get_global_id(0) * span, end = min(plane, first + span), blocks = channels / V;
  const ulong block = (ulong)plane * V;
  x += get_global_id(1) * x_stride;
  y += get_global_id(1) * y_stride;
  ROLLED for (int p = first; p < end; p += V) {
    const int count = min(V, end - p);
    global const float* from = x + p * V;
    global float* to = y + p * V;
    vec left[REACH + 1], own[V], right[V], result[V], inverse; /* left: the squares before this block */
#pragma unroll
    for (int i = 0; i < REACH; i++) left[i] = (vec)(0);
    read_block(own, from, count);
    ROLLED for (int b = 0; b < blocks; b++, to += block) {
      from += block;
      read_block(right, from, b + 1 < blocks ? count : 0);
      vec squares[V + 2 * REACH];
#pragma unroll
      for (int i = 0; i < REACH; i++) squares[i] = left[i], squares[REACH + V + i] = right[i] * right[i];
#pragma unroll
      for (int i = 0; i < V; i++) squares[REACH + i] = own[i] * own[i];
#pragma unroll
      for (int i = 0; i < V; i++) {
        vec sum = (vec)(0);
#pragma unroll
        for (int j = 0; j < SIZE; j++) sum += squares[i + j];
        result[i] = own[i] * power(k + share * sum, beta, &inverse);
      }
      transpose(result);
#pragma unroll
      for (int i = 0; i < V; i++)
        if (i < count) GLOBAL(to + i * V) = result[i];
#pragma unroll
      for (int i = 0; i < REACH; i++) left[i] = squares[V + i];
#pragma unroll
      for (int i = 0; i < V; i++) own[i] = right[i];
    }
  }
}
