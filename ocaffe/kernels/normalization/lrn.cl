/* LRN across channels: y = x s^-beta, s = k + alpha / SIZE * (sum of x^2 over SIZE channels around the channel). Nothing is saved:
 *   dx[c] = dy[c] s[c]^-beta - 2 alpha beta / SIZE * x[c] * (sum of dy x s^(-beta-1) over the same channels).
 * backward recomputes s from x in one pass over the channels, each of which is read once. `share` is alpha / SIZE.
 *
 * Defines: see lrn_across.h.
 *
 * Work-items: (positions, chunks of `chunk` channels, samples). A work-item reads each element of its position before it writes there, so y may
 * be x (and dx dy) if one chunk holds all channels. backward can end with the fused ReLU backward (fused_relu.h).
 */
#include "lrn_across.h"
#include "fused_relu.h"

/* Drop the oldest element of a ring and append `value`. */
#define PUSH(ring, length, value)                                    \
  {                                                                  \
    for (int j = 0; j + 1 < length; j++) ring[j] = ring[j + 1];      \
    ring[length - 1] = value;                                        \
  }

float sum_of_squares(const float* ring) {
  float sum = 0;
  for (int j = 0; j < SIZE; j++) sum += ring[j] * ring[j];
  return sum;
}

#define POSITIONS                                                            \
  const int position = get_global_id(0);                                     \
  if (position >= plane) return;                                             \
  const int first = get_global_id(1) * chunk, end = min(first + chunk, channels);

#define AT(x, channel) (x + get_global_id(2) * x##_stride + (long)(channel) * plane + position)
#define INSIDE(channel) ((channel) >= 0 && (channel) < channels)

/* The channels of one turn. All are loaded before the first one is used, or the loop would wait for each load. */
#define TURN 16
#define HALO (SIZE - 1)

kernel void forward(OPERAND(const SOURCE_T, x), OPERAND(RESULT_T, y), const int channels, const int plane, const int chunk,
                    const float share, const float k, const float beta) {
  LOCATE(x);
  LOCATE(y);
  POSITIONS
  float xs[HALO + TURN]; /* channels c - REACH to c + REACH + TURN - 1 */
  for (int j = 0; j < HALO; j++) xs[j] = INSIDE(first - REACH + j) ? GET(SOURCE_T, AT(x, first - REACH + j)) : 0;
  for (int c = first; c < end; c += TURN) {
#pragma unroll
    for (int j = 0; j < TURN; j++) xs[HALO + j] = c + REACH + j < channels ? GET(SOURCE_T, AT(x, c + REACH + j)) : 0;
#pragma unroll
    for (int j = 0; j < TURN; j++) {
      float inverse;
      if (c + j < end) SET(RESULT_T, AT(y, c + j), xs[REACH + j] * power(k + share * sum_of_squares(xs + j), beta, &inverse));
    }
#pragma unroll
    for (int j = 0; j < HALO; j++) xs[j] = xs[TURN + j];
  }
}

/* Three pipeline stages: load x of channel c + 2 REACH, compute the term of channel c + REACH, write dx of channel c. */
kernel void backward(OPERAND(const SOURCE_T, x), OPERAND(const GIVEN_T, dy), SIGN OPERAND(RESULT_T, dx), const int channels, const int plane,
                     const int chunk, const float share, const float k, const float beta, const int accumulate SLOPE) {
  LOCATE(x);
  LOCATE(dy);
  LOCATE_SIGN;
  LOCATE(dx);
  POSITIONS
  float xs[SIZE];           /* x of channels c to c + 2 REACH */
  float direct[REACH + 1];  /* dy s^-beta of channels c to c + REACH */
  float terms[SIZE];        /* dy x s^(-beta-1) of channels c - REACH to c + REACH */
  for (int j = 0; j < SIZE; j++) {
    terms[j] = 0;
    xs[j] = j > 0 && INSIDE(first - 2 * REACH + j - 1) ? GET(SOURCE_T, AT(x, first - 2 * REACH + j - 1)) : 0;
  }
  for (int j = 0; j <= REACH; j++) direct[j] = 0;
  for (int c = first - 2 * REACH; c < end; c++) {
    PUSH(xs, SIZE, c + 2 * REACH < channels ? GET(SOURCE_T, AT(x, c + 2 * REACH)) : 0)
    float d = 0, term = 0;
    if (INSIDE(c + REACH)) {
      float inverse;
      d = GET(GIVEN_T, AT(dy, c + REACH)) * power(k + share * sum_of_squares(xs), beta, &inverse);
      term = d * xs[REACH] * inverse;
    }
    PUSH(direct, (REACH + 1), d)
    PUSH(terms, SIZE, term)
    if (c >= first) {
      float sum = 0;
      for (int j = 0; j < SIZE; j++) sum += terms[j];
      const float result = direct[0] - 2 * share * beta * xs[0] * sum;
      IF_FUSED_RELU(put(AT(dx, c), result, accumulate, slope, sign + get_global_id(2) * sign_stride, c * plane + position),
               SET(RESULT_T, AT(dx, c), accumulate ? GET(RESULT_T, AT(dx, c)) + result : result));
    }
  }
}
