/* What the kernels of products do with a finished sum before they write it. */
#ifndef OCAFFE_EPILOGUE_H
#define OCAFFE_EPILOGUE_H

/* Output o is written as sum * FACTOR + OFFSET. The kernel's argument `has_bias` is 0 for neither, 1 for offsets in `bias`, 2 for two rows of
   it: offsets, then factors. */
#define OFFSET(bias, o) (has_bias ? bias[o] : 0.0f)
#define FACTOR(bias, o) (has_bias == 2 ? bias[bias##_stride + (o)] : 1.0f)

#endif
