/* For kernels on CPUs that reduce windows in two steps: columns over the rows of the window into a private line, then runs of the line.
 * The line is padded with the neutral element, so vectors need no test for the image's edge. Its elements `left` to `right` are the image. */
#ifndef OCAFFE_LINE_CPU_H
#define OCAFFE_LINE_CPU_H

#define V 8 /* floats of a vector */

/* Apply the kernel's REDUCE(n, vector of float, vector of int) to all columns j from left to right, with the widest vectors that fit.
 * The last vector overlaps the one before. */
#define vload1(i, p) (*(p))
#define vstore1(v, i, p) (*(p) = (v))
#define FOR_COLUMNS(n, F, I)                  \
  for (int j = left; j < right; j += n) {     \
    j = min(j, right - n);                    \
    REDUCE(n, F, I)                           \
  }
#define ALL_COLUMNS                                        \
  if (right - left >= 8) FOR_COLUMNS(8, float8, int8)      \
  else if (right - left >= 4) FOR_COLUMNS(4, float4, int4) \
  else FOR_COLUMNS(1, float, int)

/* Fill the padding of a line up to `end`. It is written in whole vectors, so the line has room for one more. */
#define FILL(p, type, value, end)              \
  for (int j = 0; j < left; j++) p[j] = value; \
  for (int j = right; j < end; j += V) vstore8((type)(value), 0, p + j);

/* Store the first `count` elements of a vector of 8. */
#define STORE(type, v, p, count)                        \
  if ((count) >= V) vstore8(v, 0, p);                   \
  else {                                                \
    type part[V];                                       \
    vstore8(v, 0, part);                                \
    for (int s = 0; s < (count); s++) (p)[s] = part[s]; \
  }

#define KERNEL kernel __attribute__((reqd_work_group_size(1, 1, 1))) void

/* Work-items (parts of a plane, planes, samples). PLANE moves operand x to its plane; OWN_ROWS declares the rows of this work-item. */
#define PLANE(x, h, w) x += get_global_id(2) * x##_stride + get_global_id(1) * (ulong)(h) * (w)
#define OWN_ROWS(h) const int first = get_global_id(0) * rows, end = min(first + rows, h)
#endif
