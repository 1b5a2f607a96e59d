/* What the kernels of products do with a finished sum before they write it. */
#ifndef OCAFFE_EPILOGUE_H
#define OCAFFE_EPILOGUE_H

/* Output o is written as sum * FACTOR + OFFSET. The kernel's argument `has_bias` is 0 for neither, 1 for offsets in `bias`, 2 for two rows of
   it: offsets, then factors. */
#define OFFSET(bias, o) (has_bias ? bias[o] : 0.0f)
#define FACTOR(bias, o) (has_bias == 2 ? bias[bias##_stride + (o)] : 1.0f)


/* Then the activation that was merged: a ReLU, and where low <= high the value is kept within them instead. Kernels for CPUs know these bounds. */
#define ACTIVATION float slope, float low, float high
#define GIVEN_ACTIVATION ((Activation){slope, low, high})
#define NO_ACTIVATION ((Activation){1.0f, 1.0f, 0.0f})
typedef struct {
  float slope, low, high;
} Activation;

/* v, a T, through it; NaN becomes the lower bound, as fmin(fmax(v, low), high) makes it. */
#define ACTIVATE(T, v, last)                                                                              \
  ((last).low <= (last).high                                                                              \
     ? ((v) >= (T)((last).low) ? ((v) <= (T)((last).high) ? (v) : (T)((last).high)) : (T)((last).low)) \
     : ((v) > (T)(0.0f) ? (v) : (last).slope * (v)))

#endif
