/* One bit per element says whether it is positive: all that the backward pass of a ReLU needs of its output.
 *
 * A sample of `count` elements has ceil(count / 1024) * 32 words. Element e is bit (e % 1024) / 32 of word e / 1024 * 32 + e % 32, so that
 * neighbours in memory belong to neighbouring words: vectors and work-items read and write whole rows.
 *
 * V  words of a work-item: a vector of them on CPUs, 1 on GPUs
 *
 * Work-items: (words / V, samples).
 */
#include "common.h"
#ifndef V
#define V 16
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if V == 1
typedef float vec;
typedef uint words;
#define LOAD(p) (*(p))
#define STORE(v, p) (*(p) = (v))
#define POSITIVE(v) ((v) > 0 ? 1u : 0u)
#define CHOOSE(no, yes, bits) ((bits) ? (yes) : (no))
#else
typedef JOIN(float, V) vec;
typedef JOIN(uint, V) words;
#define LOAD(p) JOIN(vload, V)(0, p)
#define STORE(v, p) JOIN(vstore, V)(v, 0, p)
#define POSITIVE(v) (JOIN(as_uint, V)((v) > 0) & 1u)
#define CHOOSE(no, yes, bits) select(no, yes, (bits) != 0)
#endif

/* mask = bits of x > 0 */
kernel void pack(OPERAND(const float, x), OPERAND(uint, mask), const int count) {
  LOCATE(x);
  LOCATE(mask);
  const int word = get_global_id(0) * V;
  const int begin = word / 32 * 1024 + word % 32;
  if (word >= (count + 1023) / 1024 * 32) return;
  x += get_global_id(1) * x_stride;
  mask += get_global_id(1) * mask_stride;
  words bits = 0;
  if (begin + 31 * 32 + V <= count) {
    for (int bit = 0; bit < 32; bit++) bits |= POSITIVE(LOAD(x + begin + bit * 32)) << bit;
    STORE(bits, mask + word);
  } else {
    for (int lane = 0; lane < V; lane++) {
      uint own = 0;
      for (int bit = 0; bit < 32; bit++) {
        const int at = begin + bit * 32 + lane;
        if (at < count && x[at] > 0) own |= 1u << bit;
      }
      mask[word + lane] = own;
    }
  }
}

/* dx = dy where the bit is set, else slope * dy */
kernel void relu_backward(OPERAND(const float, dy), OPERAND(const uint, mask), OPERAND(float, dx), const int count, const float slope,
                          const int accumulate) {
  LOCATE(dy);
  LOCATE(mask);
  LOCATE(dx);
  const int word = get_global_id(0) * V;
  const int begin = word / 32 * 1024 + word % 32;
  if (word >= (count + 1023) / 1024 * 32) return;
  dy += get_global_id(1) * dy_stride;
  mask += get_global_id(1) * mask_stride;
  dx += get_global_id(1) * dx_stride;
  if (begin + 31 * 32 + V <= count) {
    const words bits = LOAD(mask + word);
    for (int bit = 0; bit < 32; bit++) {
      const int at = begin + bit * 32;
      const vec d = LOAD(dy + at);
      const vec value = CHOOSE(slope * d, d, bits & (1u << bit));
      if (accumulate) STORE(LOAD(dx + at) + value, dx + at);
      else STORE(value, dx + at);
    }
  } else {
    for (int lane = 0; lane < V; lane++) {
      for (int bit = 0; bit < 32; bit++) {
        const int at = begin + bit * 32 + lane;
        if (at >= count) break;
        const float value = mask[word + lane] >> bit & 1 ? dy[at] : slope * dy[at];
        dx[at] = accumulate ? dx[at] + value : value;
      }
    }
  }
}
