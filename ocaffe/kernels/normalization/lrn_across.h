/* The parameters of LRN across channels, and the power of its sums; for the formulas see lrn.cl.

   SIZE      channels of the window, odd
   BETA_075  1: beta is 0.75, s^-beta is computed with square roots
   VALUE     the type of the sums: float, or a vector */
#ifndef OCAFFE_LRN_ACROSS_H
#define OCAFFE_LRN_ACROSS_H

#include "common.h"

#ifndef SIZE
#define SIZE 5
#endif
#ifndef BETA_075
#define BETA_075 1
#endif
#ifndef VALUE
#define VALUE float
#endif
#define REACH (SIZE / 2)

/* Return s^-beta; inverse: 1 / s. */
INLINE VALUE OWN(power)(const VALUE s, const float beta, VALUE* inverse) {
#if BETA_075
  const VALUE r = rsqrt(s);
  *inverse = r * r;
  return r * sqrt(r);
#else
  *inverse = 1 / s;
  return powr(s, (VALUE)(-beta));
#endif
}

#endif
