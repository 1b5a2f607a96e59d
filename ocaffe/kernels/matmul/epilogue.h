/* The epilogue of products: bias, factor and activation, applied to a finished sum before it is written. */
#ifndef OCAFFE_EPILOGUE_H
#define OCAFFE_EPILOGUE_H

/* Output o is sum * FACTOR + OFFSET. The kernel argument `has_bias` says what `bias` holds: 0: nothing; 1: a row of offsets;
   2: a row of offsets and a row of factors. */
#define OFFSET(bias, o) (has_bias ? bias[o] : 0.0f)
#define FACTOR(bias, o) (has_bias == 2 ? bias[bias##_stride + (o)] : 1.0f)


/* The fused activation: a ReLU with a slope, then a lower and an upper bound. NaN stays NaN. Kernels of CPUs support the bounds. Those for channels in blocks do
   with the define BOUNDS: two more instructions for each result take a GPU about 1 % of a convolution's time. */
#define ACTIVATION float slope, float low, float high
#define GIVEN_ACTIVATION slope, low, high
#define NO_ACTIVATION 1.0f, -INFINITY, INFINITY
#define ACTIVATION_IF(done) (done) ? slope : 1.0f, (done) ? low : -INFINITY, (done) ? high : INFINITY /* applied to the last part of a sum only */

/* v between the bounds. The upper one comes last, as in a Clip by itself, so that it wins if the lower one is larger. */
#define RAISED(T, v) ((v) < (T)(low) ? (T)(low) : (v))
#define BOUNDED(T, v) (RAISED(T, v) > (T)(high) ? (T)(high) : RAISED(T, v))

#ifdef BOUNDS
#define SLOPE_OR_ACTIVATION ACTIVATION
#define GIVEN_SLOPE_OR_ACTIVATION GIVEN_ACTIVATION
#define BOUNDED_IF_DEFINED(T, v) BOUNDED(T, v)
#else
#define SLOPE_OR_ACTIVATION float slope
#define GIVEN_SLOPE_OR_ACTIVATION slope
#define BOUNDED_IF_DEFINED(T, v) (v)
#endif

/* Apply the activation to v, a variable of type T. */
#define ACTIVATE(T, v)                   \
  do {                                   \
    v = v > 0.0f ? v : slope * v;        \
    v = BOUNDED(T, v);                   \
  } while (0)

#endif
