/* Definitions for the pooling kernels of both device classes.
 *
 * METHOD  0 MAX, 1 AVE, 2 STOCHASTIC
 * KH, KW  window            SH, SW  stride            PH, PW  padding           DH, DW  dilation (pooling.cl); all in pixels
 * VOLUME  1: images also have a depth, with KD, SD, PD, DD (pooling.cl)
 * PADDING_COUNTS  0: AVE divides by the number of pixels inside the image
 * INDEX   type of a saved index: the position in its window, row by row, of the pixel that was the maximum. All bits set: none (an
 *         empty window, or one that holds only NaN); KH * KW is less than that.
 *
 * Windows may extend beyond the end of the image (CEIL). AVE divides by the size of the window's part inside the padded image, unless
 * PADDING_COUNTS is 0.
 */
#ifndef OCAFFE_POOLING_H
#define OCAFFE_POOLING_H
#include "common.h"

#define MAX 0
#define AVE 1
#define STOCHASTIC 2
#ifndef METHOD
#define METHOD MAX
#endif
#ifndef KH
#define KH 2
#endif
#ifndef KW
#define KW 2
#endif
#ifndef SH
#define SH 2
#endif
#ifndef SW
#define SW 2
#endif
#ifndef PH
#define PH 0
#endif
#ifndef PW
#define PW 0
#endif
#ifndef INDEX
#define INDEX uchar
#endif
#ifndef PADDING_COUNTS
#define PADDING_COUNTS 1
#endif

/* The first and the last output whose window contains pixel `i` along one axis. */
#define FIRST_OUT(i, kernel, stride, pad) ((i) + pad < kernel ? 0 : ((i) + pad - kernel) / stride + 1)
#define LAST_OUT(i, stride, pad, outputs) min(((i) + pad) / stride, (outputs) - 1)

/* The number of pixels along one axis that AVE counts in the window that begins at `first`. */
#if PADDING_COUNTS
#define EXTENT(first, kernel, pad, size) (min((first) + kernel, (size) + pad) - (first))
#else
#define EXTENT(first, kernel, pad, size) (min((first) + kernel, size) - max(first, 0))
#endif
#endif
