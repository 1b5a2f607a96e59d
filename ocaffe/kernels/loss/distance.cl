/* Distances of all rows p of a matrix to all rows q of another, over `depth` columns: the sum of d^2, or of |d| with SQUARES 0. InnerDistance.
 *
 *   between  y[p][q] = the distance
 *   pull     dp[p][k] = sum over q of dy times the derivative of the distance by p[k]
 *
 * A matrix has a step between its rows and one between its columns. `pull` serves both matrices: dy has its own two steps.
 * Work-items: one per element of the result.
 */
#include "common.h"

#ifndef SQUARES
#define SQUARES 1
#endif

kernel void ENTRY(between)(OPERAND(const float, p), OPERAND(const float, q), OPERAND(float, y), const int ps, const int qs, const int depth, const int p_row,
                    const int q_row, const int q_column) {
  LOCATE(p);
  LOCATE(q);
  LOCATE(y);
  const int i = get_global_id(0), row = i / qs, other = i % qs;
  if (row >= ps) return;
  float sum = 0;
  for (int k = 0; k < depth; k++) {
    const float d = p[(ulong)row * p_row + k] - q[(ulong)other * q_row + (ulong)k * q_column];
    sum += SQUARES ? d * d : fabs(d);
  }
  y[i] = sum;
}

kernel void ENTRY(pull)(OPERAND(const float, p), OPERAND(const float, q), OPERAND(const float, dy), OPERAND(float, dp), const int ps, const int qs,
                 const int depth, const int p_row, const int p_column, const int q_row, const int q_column, const int dy_row, const int dy_column,
                 const int accumulate) {
  LOCATE(p);
  LOCATE(q);
  LOCATE(dy);
  LOCATE(dp);
  const int i = get_global_id(0), row = i / depth, k = i % depth;
  if (row >= ps) return;
  const ulong at = (ulong)row * p_row + (ulong)k * p_column;
  float sum = 0;
  for (int j = 0; j < qs; j++) {
    const float d = p[at] - q[(ulong)j * q_row + (ulong)k * q_column], slope = dy[(ulong)row * dy_row + (ulong)j * dy_column];
    sum += SQUARES ? 2 * d * slope : sign(d) * slope;
  }
  dp[at] = accumulate ? dp[at] + sum : sum;
}
