/* For kernels on CPUs that reduce windows in two steps: columns over the rows of the window into a private line, then runs of the line.
 * The line is padded with the neutral element, so no vector meets an edge of the image. `left` to `right` of it are image. */
#ifndef OCAFFE_LINE_CPU_H
#define OCAFFE_LINE_CPU_H

#define V 8 /* numbers of a vector */

/* The kernel's REDUCE(n, vector of float, vector of int) for all columns j from left to right, by the widest vectors that fit; the last
 * vector covers again what is done. */
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

/* What is not image, up to `end`: whole vectors, so the line has room for one more. */
#define FILL(p, type, value, end)              \
  for (int j = 0; j < left; j++) p[j] = value; \
  for (int j = right; j < end; j += V) vstore8((type)(value), 0, p + j);

/* The first `count` numbers of a vector of 8. */
#define STORE(type, v, p, count)                        \
  if ((count) >= V) vstore8(v, 0, p);                   \
  else {                                                \
    type part[V];                                       \
    vstore8(v, 0, part);                                \
    for (int s = 0; s < (count); s++) (p)[s] = part[s]; \
  }

#define KERNEL kernel __attribute__((reqd_work_group_size(1, 1, 1))) void

/* Work-items (parts of a plane, planes, samples): the plane of operand x, and the rows that this work-item owns. */
#define PLANE(x, h, w) x += get_global_id(2) * x##_stride + get_global_id(1) * (ulong)(h) * (w)
#define OWN_ROWS(h) const int first = get_global_id(0) * rows, end = min(first + rows, h)
#endif
