/* Random values of a top (ocaffe/kernels/inputs/filler.py). The values depend on the key, the number of the batch and their position alone.
 *
 *   NORMAL  0: uniform in [a, a + b); 1: normal with mean a and standard deviation b (Box and Muller, "A note on the generation of random
 *           normal deviates", 1958)
 *   SPARSE  1: a value is kept with the probability `kept`, else it is 0
 * A work-item draws four consecutive values of a sample. Work-items: (count / 4, samples). The first 8 bytes of the block are the number of the batch.
 */
#include "common.h"

/* A random word as a float in (0, 1]; its logarithm is finite. */
static float above0(uint word) { return ((float)word + 1.0f) * 0x1p-32f; }

static float2 normals(uint2 words) {
  const float radius = sqrt(-2.0f * log(above0(words.x))), turn = 2.0f * uniform01(words.y);
  return radius * (float2)(cospi(turn), sinpi(turn));
}

kernel void draw(OPERAND(const uchar, block), OPERAND(float, y), const uint key0, const uint key1, const int count, const float a, const float b,
                 const float kept) {
  const uint n = get_global_id(1);
  const int i = get_global_id(0) * 4;
  if (i >= count) return;
  LOCATE(block);
  LOCATE(y);
  const uint2 batch = *(global const uint2*)block;
  const uint4 words = philox((uint4)(i >> 2, n, batch.x, batch.y), (uint2)(key0, key1));
#if NORMAL
  const float4 unit = (float4)(normals(words.xy), normals(words.zw));
#else
  const float4 unit = (float4)(uniform01(words.x), uniform01(words.y), uniform01(words.z), uniform01(words.w));
#endif
  float4 values = a + b * unit;
#if SPARSE
  const uint4 more = philox((uint4)((i >> 2) | 0x80000000u, n, batch.x, batch.y), (uint2)(key0, key1));
  values = (float4)(uniform01(more.x) < kept ? values.x : 0.0f, uniform01(more.y) < kept ? values.y : 0.0f,
                    uniform01(more.z) < kept ? values.z : 0.0f, uniform01(more.w) < kept ? values.w : 0.0f);
#endif
  y += n * y_stride + i;
  if (i + 4 <= count) {
    vstore4(values, 0, y);
  } else {
    y[0] = values.x;
    if (i + 1 < count) y[1] = values.y;
    if (i + 2 < count) y[2] = values.z;
  }
}
