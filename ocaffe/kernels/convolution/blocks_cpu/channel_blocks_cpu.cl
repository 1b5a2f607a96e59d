/* Images without blocks of channels, from images with blocks of V, on CPU runtimes (docs/kernels.md, Channels in blocks on CPUs):
   y = [channel][pixel] of x = [block][pixel][V]. Work-items: (`share` pixels, block of channels, sample). */
#define NV 1
#define MR 1
#include "common.h"
#include "tile_cpu.h"

SINGLE void ENTRY(join)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(float, y), int channels, int pixels, int share) {
  LOCATE(x); LOCATE(y);
  const int valid = min(V, channels - (int)get_global_id(1) * V); /* the last block of x may have empty channels */
  const ulong block = (ulong)get_global_id(1) * V * pixels;
  const int first = get_global_id(0) * share, end = min(pixels, first + share);
  x += get_global_id(2) * x_stride + block;
  y += get_global_id(2) * y_stride + block;
  int p = first;
  for (; p + V <= end; p += V) {
    vec tile[V];
#pragma unroll
    for (int i = 0; i < V; i++) tile[i] = GLOBAL(x + (ulong)(p + i) * V);
    transpose(tile);
#pragma unroll
    for (int i = 0; i < V; i++)
      if (i < valid) GLOBAL(y + (ulong)i * pixels + p) = tile[i];
  }
  for (; p < end; p++)
    ROLLED for (int i = 0; i < valid; i++) y[(ulong)i * pixels + p] = x[(ulong)p * V + i];
}
