/* Statistics of what a work-group writes (ocaffe/memory/moments.py), if MOMENTS is defined: moments[3][channels][parts], of each channel the number of values,
   their mean, and the sum of squares of what they differ from it. */
#ifndef OCAFFE_MOMENTS_H
#define OCAFFE_MOMENTS_H

#ifdef MOMENTS
#define STATISTICS OPERAND_RESTRICT(float, moments),
#define GIVEN_STATISTICS moments + moments_offset, moments_stride
#else
#define STATISTICS
#define GIVEN_STATISTICS 0, 0
#endif

#endif
