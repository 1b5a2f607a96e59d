/* What the kernels of products do with a finished sum before they write it. */
#ifndef OCAFFE_EPILOGUE_H
#define OCAFFE_EPILOGUE_H

/* Output o is written as sum * FACTOR + OFFSET. The kernel's argument `has_bias` is 0 for neither, 1 for offsets in `bias`, 2 for two rows of
   it: offsets, then factors. */
#define OFFSET(bias, o) (has_bias ? bias[o] : 0.0f)
#define FACTOR(bias, o) (has_bias == 2 ? bias[bias##_stride + (o)] : 1.0f)


/* Then the activation that was merged: a ReLU, then bounds that the value is kept within; a NaN stays one. Kernels for CPUs know these bounds. */
#define ACTIVATION float slope, float low, float high
#define GIVEN_ACTIVATION slope, low, high
#define NO_ACTIVATION 1.0f, -INFINITY, INFINITY
#define ACTIVATION_IF(done) (done) ? slope : 1.0f, (done) ? low : -INFINITY, (done) ? high : INFINITY /* only the last part of a sum */

/* v, a variable of type T, through it. */
#define ACTIVATE(T, v)                   \
  do {                                   \
    v = v > 0.0f ? v : slope * v;        \
    v = v < (T)(low) ? (T)(low) : v;     \
    v = v > (T)(high) ? (T)(high) : v;   \
  } while (0)

#endif
