/* Work-items of GPUs that make a strip of a plane: a few rows, and in backward as many columns as the stride has, so that which taps meet which
   results is known when the kernel is compiled. Each value of the other plane is loaded once and given to all results that see it: a 3 x 3 window
   needs 4.5 loads a result instead of 9 with a stride of 1, and 1 instead of 2.25 backward with a stride of 2.

   forward   ROWS results below each other; their windows see the rows FORWARD_ROWS of the image and a tap's column each
   backward  BACK_ROWS(stride) x stride pixels, the first at a multiple of the stride; they are seen by the outputs FIRST_BACK .. LAST_BACK,
             counted from the one at (row / stride, column / stride)

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

/* The tap that lies `distance` pixels into a window, as a condition and a number. */
#define IS_TAP(distance, kernel, dilation) ((distance) >= 0 && (distance) % (dilation) == 0 && (distance) / (dilation) < (kernel))

/* Declares plane, strip and column of this work-item, and ends it if there is none. */
#define STRIP_ITEM(planes, strips, columns)                                                     \
  const int strip_column = get_global_id(0) % (columns), above = get_global_id(0) / (columns);  \
  const int strip = above % (strips), plane = above / (strips), sample = get_global_id(1);      \
  if (plane >= (planes)) return;

#endif
