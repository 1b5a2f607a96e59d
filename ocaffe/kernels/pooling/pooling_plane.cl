/* MAX and AVE pooling over whole planes (global_pooling, or a window as large as the image). The image size is an argument.
 *
 * METHOD  0 MAX, 1 AVE
 * GROUP   work-items of a group, a power of two; 1 on CPUs
 * FUSED_RELU  see fused_relu.h
 *
 * Work-items: forward (GROUP * planes, samples), a group for each plane, reduced as a tree; backward (pieces * planes, samples), each writes
 * `piece` neighbouring pixels of a plane, with the fused ReLU backward. The saved index is the position in the plane, all bits set for none.
 */
#include "common.h"
#include "fused_relu.h"

#ifndef METHOD
#define METHOD 0
#endif
#ifndef GROUP
#define GROUP 1
#endif

#define KERNEL kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
#define ID get_local_id(0)
#define PLANE get_group_id(0)

#define TREE(buffer, combine)                              \
  for (int apart = GROUP / 2; apart > 0; apart /= 2) {     \
    barrier(CLK_LOCAL_MEM_FENCE);                          \
    if (ID < apart) buffer[ID] = combine(buffer[ID], buffer[ID + apart]); \
  }                                                        \
  barrier(CLK_LOCAL_MEM_FENCE);

#if METHOD == 0
float larger(const float a, const float b) { return b > a ? b : a; }

/* NaN is never larger, so a plane of NaN results in -FLT_MAX, as in the other kernels. */
float largest(global const SOURCE_T* x, const int size, local float* buffer) {
  float4 best = -FLT_MAX;
  for (int i = 4 * ID; i + 4 <= size; i += 4 * GROUP) {
    const float4 v = VGET4(SOURCE_T, x + i);
    best = v > best ? v : best;
  }
  float one = larger(larger(best.s0, best.s1), larger(best.s2, best.s3));
  for (int i = size / 4 * 4 + ID; i < size; i += GROUP) one = larger(one, GET(SOURCE_T, x + i));
  buffer[ID] = one;
  TREE(buffer, larger)
  return buffer[0];
}

KERNEL forward(OPERAND(const SOURCE_T, x), OPERAND(RESULT_T, y), const int size) {
  LOCATE(x);
  LOCATE(y);
  local float buffer[GROUP];
  const float best = largest(x + get_global_id(1) * x_stride + PLANE * (ulong)size, size, buffer);
  if (ID == 0) SET(RESULT_T, y + get_global_id(1) * y_stride + PLANE, best);
}

KERNEL forward_index(OPERAND(const SOURCE_T, x), OPERAND(RESULT_T, y), OPERAND(uint, index), const int size) {
  LOCATE(x);
  LOCATE(y);
  LOCATE(index);
  local float buffer[GROUP];
  local uint places[GROUP];
  x += get_global_id(1) * x_stride + PLANE * (ulong)size;
  const float best = largest(x, size, buffer);
  uint place = -1;
  for (int i = ID; i < size && place == (uint)-1 && best > -FLT_MAX; i += GROUP) place = GET(SOURCE_T, x + i) == best ? i : place;
  places[ID] = place;
  TREE(places, min)
  if (ID == 0) {
    SET(RESULT_T, y + get_global_id(1) * y_stride + PLANE, best);
    index[get_global_id(1) * index_stride + PLANE] = places[0];
  }
}

kernel void mask(OPERAND(const uint, index), OPERAND(float, y), const int planes) {
  LOCATE(index);
  LOCATE(y);
  if (get_global_id(0) >= planes) return;
  const uint at = index[get_global_id(1) * index_stride + get_global_id(0)];
  y[get_global_id(1) * y_stride + get_global_id(0)] = at == (uint)-1 ? -1.0f : (float)at;
}
#else
float plus(const float a, const float b) { return a + b; }

KERNEL forward(OPERAND(const SOURCE_T, x), OPERAND(RESULT_T, y), const int size) {
  LOCATE(x);
  LOCATE(y);
  local float buffer[GROUP];
  x += get_global_id(1) * x_stride + PLANE * (ulong)size;
  float4 sum = 0;
  for (int i = 4 * ID; i + 4 <= size; i += 4 * GROUP) sum += VGET4(SOURCE_T, x + i);
  float one = (sum.s0 + sum.s1) + (sum.s2 + sum.s3);
  for (int i = size / 4 * 4 + ID; i < size; i += GROUP) one += GET(SOURCE_T, x + i);
  buffer[ID] = one;
  TREE(buffer, plus)
  if (ID == 0) SET(RESULT_T, y + get_global_id(1) * y_stride + PLANE, buffer[0] / size);
}
#endif

#define PUT(v)                                                                                              \
  IF_FUSED_RELU(put(dx + i, v, accumulate, slope, sign + get_global_id(1) * sign_stride, plane * size + i), \
           SET(RESULT_T, dx + i, (accumulate ? GET(RESULT_T, dx + i) : 0) + (v)))

/* The pixels of this work-item: from `begin` to `end` of one plane. */
#define PIXELS                                                                                     \
  const int pieces = (size + piece - 1) / piece, plane = get_global_id(0) / pieces;                \
  const int begin = get_global_id(0) % pieces * piece, end = min(begin + piece, size);             \
  if (plane >= planes) return;                                                                     \
  dy += get_global_id(1) * dy_stride + plane;                                                      \
  dx += get_global_id(1) * dx_stride + (ulong)plane * size;

#if METHOD == 0
kernel void backward(OPERAND(const SOURCE_T, dy), OPERAND(const uint, index), SIGN OPERAND(RESULT_T, dx), const int planes, const int size,
                     const int piece, const int accumulate SLOPE) {
  LOCATE(dy);
  LOCATE_SIGN;
  LOCATE(index);
  LOCATE(dx);
  PIXELS
  const uint place = index[get_global_id(1) * index_stride + plane];
  const float d = FUSED_RELU_BEFORE_SCATTER(GET(SOURCE_T, dy), sign + get_global_id(1) * sign_stride, plane);
  for (int i = begin; i < end; i++) PUT(i == place ? d : 0);
}
#else
kernel void backward(OPERAND(const SOURCE_T, dy), SIGN OPERAND(RESULT_T, dx), const int planes, const int size, const int piece, const int accumulate SLOPE) {
  LOCATE(dy);
  LOCATE_SIGN;
  LOCATE(dx);
  PIXELS
  const float d = GET(SOURCE_T, dy) / size;
  for (int i = begin; i < end; i++) PUT(d);
}
#endif
