/* A bit mask of the positive elements of a tensor: the backward pass of a ReLU needs nothing else of its output.
 *
 * A sample of `count` elements has ceil(count / 1024) * 32 words. Element e is bit (e % 1024) / 32 of word e / 1024 * 32 + e % 32. Neighbouring
 * elements thus belong to neighbouring words, so that vectors and work-items read and write contiguous memory.
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
#define VALUES(T, p) GET(T, p)
#define PUT_VALUES(T, v, p) SET(T, p, v)
#define WORDS_AT(p) (*(p))
#define PUT_WORDS(v, p) (*(p) = (v))
#define POSITIVE(v) ((v) > 0 ? 1u : 0u)
#define CHOOSE(no, yes, bits) ((bits) ? (yes) : (no))
#else
typedef JOIN(float, V) vec;
typedef JOIN(uint, V) words;
#define VALUES(T, p) JOIN(vload, V)(0, p)
#define PUT_VALUES(T, v, p) JOIN(vstore, V)(v, 0, p)
#define WORDS_AT(p) JOIN(vload, V)(0, p)
#define PUT_WORDS(v, p) JOIN(vstore, V)(v, 0, p)
#define POSITIVE(v) (JOIN(as_uint, V)((v) > 0) & 1u)
#define CHOOSE(no, yes, bits) select(no, yes, (bits) != 0)
#endif

/* mask = bits of x > 0 */
kernel void pack(OPERAND(const SOURCE_T, x), OPERAND(uint, mask), const int count) {
  LOCATE(x);
  LOCATE(mask);
  const int word = get_global_id(0) * V;
  const int begin = word / 32 * 1024 + word % 32;
  if (word >= (count + 1023) / 1024 * 32) return;
  x += get_global_id(1) * x_stride;
  mask += get_global_id(1) * mask_stride;
  words bits = 0;
  if (begin + 31 * 32 + V <= count) {
    for (int bit = 0; bit < 32; bit++) bits |= POSITIVE(VALUES(SOURCE_T, x + begin + bit * 32)) << bit;
    PUT_WORDS(bits, mask + word);
  } else {
    for (int lane = 0; lane < V; lane++) {
      uint own = 0;
      for (int bit = 0; bit < 32; bit++) {
        const int at = begin + bit * 32 + lane;
        if (at < count && GET(SOURCE_T, x + at) > 0) own |= 1u << bit;
      }
      mask[word + lane] = own;
    }
  }
}

/* dx = dy where the bit is set, else slope * dy */
kernel void relu_backward(OPERAND(const SOURCE_T, dy), OPERAND(const uint, mask), OPERAND(RESULT_T, dx), const int count, const float slope,
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
    const words bits = WORDS_AT(mask + word);
    for (int bit = 0; bit < 32; bit++) {
      const int at = begin + bit * 32;
      const vec d = VALUES(SOURCE_T, dy + at);
      const vec value = CHOOSE(slope * d, d, bits & (1u << bit));
      if (accumulate) PUT_VALUES(RESULT_T, VALUES(RESULT_T, dx + at) + value, dx + at);
      else PUT_VALUES(RESULT_T, value, dx + at);
    }
  } else {
    for (int lane = 0; lane < V; lane++) {
      for (int bit = 0; bit < 32; bit++) {
        const int at = begin + bit * 32 + lane;
        if (at >= count) break;
        const float given = GET(SOURCE_T, dy + at), value = mask[word + lane] >> bit & 1 ? given : slope * given;
        SET(RESULT_T, dx + at, accumulate ? GET(RESULT_T, dx + at) + value : value);
      }
    }
  }
}
