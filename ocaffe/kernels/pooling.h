/* What both machine classes of pooling share.
 *
 * METHOD  0 MAX, 1 AVE, 2 STOCHASTIC
 * KH, KW  window            SH, SW  stride            PH, PW  padding           DH, DW  dilation (pooling.cl)
 * VOLUME  1: images have a depth too, with KD, SD, PD, DD (pooling.cl)
 * PADDING_COUNTS  0: AVE divides by the pixels of the image alone
 * INDEX   type of a saved index: the place in its window, row by row, of the pixel that the output was taken from. All ones: none (an
 *         empty window, or one that holds only NaN); KH * KW is less than that.
 *
 * Windows overhang the image at its end (CEIL). AVE divides by the part of the window that lies in the padded image, unless told not to.
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

/* Outputs whose windows hold pixel `i` along one axis: from FIRST_OUT on, up to LAST_OUT. */
#define FIRST_OUT(i, kernel, stride, pad) ((i) + pad < kernel ? 0 : ((i) + pad - kernel) / stride + 1)
#define LAST_OUT(i, stride, pad, outputs) min(((i) + pad) / stride, (outputs) - 1)

/* Pixels that count of those that the window from `first` on holds along one axis. */
#if PADDING_COUNTS
#define EXTENT(first, kernel, pad, size) (min((first) + kernel, (size) + pad) - (first))
#else
#define EXTENT(first, kernel, pad, size) (min((first) + kernel, size) - max(first, 0))
#endif
#endif
