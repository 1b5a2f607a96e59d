/* LRN across channels for CPUs; for the formulas see lrn.cl.
 *
 * Defines: see lrn_across.h.
 *
 * Work-items: (spans of `span` positions, samples), one to a group; each loops over the channels. It keeps lines of the window's channels in
 * rings, so memory is read once. The runs are long enough for the prefetcher (whole pages are twice as fast as 2 KiB). Channel c has
 * slot c % length. Each element of the span is read before it is written, so y may be x (and dx dy).
 */
#define VALUE float16
#include "lrn_across.h"
#include "part_cpu.h"

#define SPAN 1024 /* floats of a line, the longest span */

#define KERNEL kernel __attribute__((reqd_work_group_size(1, 1, 1))) void

#define SLOT(ring, channel, length) (ring + ((channel) + 2 * (length)) % (length) * SPAN)
#define EACH_VECTOR for (int i = 0; i < count; i += 16)

/* Copy a channel's values to its slot; a channel that does not exist is zero. */
void OWN(fetch)(float* line, global const float* source, const bool exists, const int count) {
  EACH_VECTOR vstore16(exists ? load_part(source + i, count - i) : 0, 0, line + i);
}

float16 OWN(window)(const float* ring, const float share, const float k) {
  float16 sum = 0;
  for (int j = 0; j < SIZE; j++) {
    const float16 v = vload16(0, ring + j * SPAN);
    sum += v * v;
  }
  return k + share * sum;
}

#define POSITIONS const int position = get_global_id(0) * span, count = min(span, plane - position);
#define AT(x, channel) (x + get_global_id(1) * x##_stride + (long)(channel) * plane + position)

KERNEL ENTRY(forward)(OPERAND(const float, x), OPERAND(float, y), const int channels, const int plane, const int span, const float share,
               const float k, const float beta) {
  LOCATE(x);
  LOCATE(y);
  POSITIONS
  float xs[SIZE * SPAN];
  for (int c = -REACH - 1; c < REACH; c++) fetch(SLOT(xs, c, SIZE), AT(x, c), c >= 0 && c < channels, count);
  for (int c = 0; c < channels; c++) {
    fetch(SLOT(xs, c + REACH, SIZE), AT(x, c + REACH), c + REACH < channels, count);
    EACH_VECTOR {
      float16 inverse;
      const float16 p = power(window(xs + i, share, k), beta, &inverse);
      store_part(vload16(0, SLOT(xs, c, SIZE) + i) * p, AT(y, c) + i, count - i);
    }
  }
}

/* Three pipeline stages: load x of channel c + 2 REACH, compute the term of channel c + REACH, write dx of channel c. */
KERNEL ENTRY(backward)(OPERAND(const float, x), OPERAND(const float, dy), OPERAND(float, dx), const int channels, const int plane,
                const int span, const float share, const float k, const float beta, const int accumulate) {
  LOCATE(x);
  LOCATE(dy);
  LOCATE(dx);
  POSITIONS
  float xs[SIZE * SPAN];             /* x of channels c to c + 2 REACH */
  float direct[(REACH + 1) * SPAN];  /* dy s^-beta of channels c to c + REACH */
  float terms[SIZE * SPAN];          /* dy x s^(-beta-1) of channels c - REACH to c + REACH */
  for (int j = 0; j < SIZE; j++) {
    fetch(xs + j * SPAN, x, false, count);
    fetch(terms + j * SPAN, x, false, count);
  }
  for (int c = -2 * REACH; c < channels; c++) {
    const int middle = c + REACH, ahead = c + 2 * REACH;
    fetch(SLOT(xs, ahead, SIZE), AT(x, ahead), ahead < channels, count);
    float *term = SLOT(terms, middle, SIZE), *d = SLOT(direct, middle, REACH + 1);
    const float* own = SLOT(xs, middle, SIZE);
    if (middle >= 0 && middle < channels) {
      EACH_VECTOR {
        float16 inverse;
        const float16 p = power(window(xs + i, share, k), beta, &inverse);
        const float16 v = load_part(AT(dy, middle) + i, count - i) * p;
        vstore16(v, 0, d + i);
        vstore16(v * vload16(0, own + i) * inverse, 0, term + i);
      }
    } else {
      fetch(term, x, false, count);
    }
    if (c >= 0) {
      EACH_VECTOR {
        float16 sum = 0;
        for (int j = 0; j < SIZE; j++) sum += vload16(0, terms + j * SPAN + i);
        float16 v = vload16(0, SLOT(direct, c, REACH + 1) + i) - 2 * share * beta * vload16(0, SLOT(xs, c, SIZE) + i) * sum;
        if (accumulate) v += load_part(AT(dx, c) + i, count - i);
        store_part(v, AT(dx, c) + i, count - i);
      }
    }
  }
}
