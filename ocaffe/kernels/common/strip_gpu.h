/* GPU kernels in which a work-item computes a strip of a plane. A strip is a few rows of one column; in backward it has as many columns as
   the stride. The taps of each result are then known at compile time. Each value of the other plane is loaded once and used for all results
   that depend on it: a 3 x 3 window of stride 1 needs 4.5 loads per result instead of 9, and backward with stride 2 needs 1 instead of 2.25.

   forward   ROWS results of one column; their windows cover FORWARD_ROWS rows of the image
   backward  BACK_ROWS(stride) x stride pixels, the first at a multiple of the stride. They belong to the windows of the outputs
             FIRST_BACK .. LAST_BACK, counted from the output at (row / stride, column / stride)

   Work-item (i, sample): i counts columns, then strips, then planes. */
#ifndef OCAFFE_STRIP_GPU_H
#define OCAFFE_STRIP_GPU_H

#define ROWS 4
#define BACK_ROWS(stride) ((stride) < ROWS ? ROWS / (stride) * (stride) : (stride))

/* Floor and ceiling of a / b, b > 0. */
#define DOWN(a, b) ((a) >= 0 ? (a) / (b) : -((-(a) + (b)-1) / (b)))
#define UP(a, b) (-DOWN(-(a), b))

#define FORWARD_ROWS(kernel, stride, dilation) ((ROWS - 1) * (stride) + ((kernel)-1) * (dilation) + 1)
#define FIRST_BACK(kernel, stride, pad, dilation) UP((pad) - ((kernel)-1) * (dilation), stride)
#define LAST_BACK(size, stride, pad) DOWN((size)-1 + (pad), stride)

/* Whether a tap is `distance` pixels from the beginning of the window. */
#define IS_TAP(distance, kernel, dilation) ((distance) >= 0 && (distance) % (dilation) == 0 && (distance) / (dilation) < (kernel))

/* Declare plane, strip and column of this work-item, and return if there is no such strip. */
#define STRIP_ITEM(planes, strips, columns)                                                     \
  const int strip_column = get_global_id(0) % (columns), above = get_global_id(0) / (columns);  \
  const int strip = above % (strips), plane = above / (strips), sample = get_global_id(1);      \
  if (plane >= (planes)) return;

#endif
