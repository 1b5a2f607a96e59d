/* ROIPooling: the maximum of every bin of every region.
 *
 * INDEX     integer type of the saved position of a maximum in its plane, H * W if the bin is empty
 * CHANNELS  planes of a work-item of backward, which share the search for bins
 *
 * `bins` (regions x (1 + 2 PH + 2 PW)) holds for each region its image, or -1 if that image does not exist. Then follow the first and end row of
 * each row of bins, and the first and end column of each column of bins. Both are clipped to the plane. It is computed once and read by all channels.
 *
 * Work-items: bins: one for each region. forward: (pieces of a region's outputs, regions). backward: (pixels of a plane, groups of CHANNELS planes,
 * images), each gathers from the regions in order. backward_plane: (planes, images), each owns its plane and loops over the regions in order; for
 * CPUs, where its work is proportional to the outputs instead of pixels times regions.
 */
#include "boxes.h"

#ifndef INDEX
#define INDEX ushort
#endif
#ifndef CHANNELS
#define CHANNELS 4
#endif

#define FAR 1e8f /* beyond every plane, and the sum of two still fits an int */

/* First and end of the bins of one axis, from both ends of the region in pixels of the plane. */
void OWN(edges)(global int* result, const int count, const int size, const float from, const float to) {
  const int first = (int)clamp(from, -FAR, FAR), last = (int)clamp(to, -FAR, FAR);
  const float extent = quotient((float)max(last - first + 1, 1), (float)count);
  for (int i = 0; i < count; i++) {
    result[2 * i] = clamp((int)floor(i * extent) + first, 0, size);
    result[2 * i + 1] = clamp((int)ceil((i + 1) * extent) + first, 0, size);
  }
}

kernel void ENTRY(bins)(OPERAND(const float, rois), OPERAND(int, bins), const int count, const int images, const int H, const int W, const int PH,
                 const int PW, const float scale) {
  LOCATE(rois);
  LOCATE(bins);
  const int r = get_global_id(0);
  if (r >= count) return;
  rois += r * rois_stride;
  bins += r * bins_stride;
  bins[0] = rois[0] > -1 && rois[0] < images ? (int)rois[0] : -1;
  edges(bins + 1, PH, H, round(rois[2] * scale), round(rois[4] * scale));
  edges(bins + 1 + 2 * PH, PW, W, round(rois[1] * scale), round(rois[3] * scale));
}

#define EACH_OUTPUT                                                                        \
  const int r = get_global_id(1), from = get_global_id(0) * piece;                         \
  bins += r * bins_stride;                                                                 \
  for (int i = from; i < min(from + piece, count); i++)

/* The first maximum in row order of output i, its value and its position; the bin's rows and columns. */
#define CHOOSE                                                                             \
  const int column = i % PW, row = i / PW % PH, c = i / PW / PH;                           \
  global const int *rows = bins + 1 + 2 * row, *columns = bins + 1 + 2 * PH + 2 * column;  \
  float result = rows[0] < rows[1] && columns[0] < columns[1] ? -FLT_MAX : 0;              \
  int at = H * W;                                                                          \
  if (bins[0] < 0) {                                                                       \
    result = NAN;                                                                          \
  } else {                                                                                 \
    global const float* plane = x + bins[0] * x_stride + (long)c * H * W;                  \
    for (int h = rows[0]; h < rows[1]; h++)                                                \
      for (int w = columns[0]; w < columns[1]; w++)                                        \
        if (plane[h * W + w] > result) {                                                   \
          at = h * W + w;                                                                  \
          result = plane[at];                                                              \
        }                                                                                  \
  }

kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(const int, bins), OPERAND(float, y), const int count, const int piece, const int H, const int W,
                    const int PH, const int PW) {
  LOCATE(x);
  LOCATE(bins);
  LOCATE(y);
  EACH_OUTPUT {
    CHOOSE
    y[r * y_stride + i] = result;
  }
}

kernel void ENTRY(forward_index)(OPERAND(const float, x), OPERAND(const int, bins), OPERAND(float, y), OPERAND(INDEX, index), const int count,
                          const int piece, const int H, const int W, const int PH, const int PW) {
  LOCATE(x);
  LOCATE(bins);
  LOCATE(y);
  LOCATE(index);
  EACH_OUTPUT {
    CHOOSE
    y[r * y_stride + i] = result;
    index[r * index_stride + i] = at;
  }
}

/* The range of bins, from `first` to before `last`, that contain a position. It is contiguous, since bins ascend along the axis. */
#define HOLDING(first, last, edges, count, place)                                          \
  int first = 0, last;                                                                     \
  while (first < count && edges[2 * first + 1] <= place) first++;                          \
  for (last = first; last < count && edges[2 * last] <= place; last++) {                   \
  }

kernel void ENTRY(backward)(OPERAND(const float, dy), OPERAND(const INDEX, index), OPERAND(const int, bins), OPERAND(float, dx), const int regions,
                     const int planes, const int H, const int W, const int PH, const int PW, const int accumulate) {
  LOCATE(dy);
  LOCATE(index);
  LOCATE(bins);
  LOCATE(dx);
  const int i = get_global_id(0), c0 = get_global_id(1) * CHANNELS, n = get_global_id(2), h = i / W, w = i % W;
  if (i >= H * W) return;
  const int own = min(CHANNELS, planes - c0), outputs = PH * PW;
  float sum[CHANNELS] = {0};
  for (int r = 0; r < regions; r++) {
    global const int *rows = bins + r * bins_stride + 1, *columns = rows + 2 * PH;
    if (rows[-1] != n || h < rows[0] || h >= rows[2 * PH - 1] || w < columns[0] || w >= columns[2 * PW - 1]) continue;
    HOLDING(top, bottom, rows, PH, h)
    HOLDING(left, right, columns, PW, w)
    for (int c = 0; c < own; c++) {
      global const float* g = dy + r * dy_stride + (c0 + c) * outputs;
      global const INDEX* at = index + r * index_stride + (c0 + c) * outputs;
      for (int row = top; row < bottom; row++)
        for (int column = left; column < right; column++)
          if (at[row * PW + column] == i) sum[c] += g[row * PW + column];
    }
  }
  dx += n * dx_stride + (long)c0 * H * W + i;
  for (int c = 0; c < own; c++) dx[(long)c * H * W] = accumulate ? dx[(long)c * H * W] + sum[c] : sum[c];
}

kernel void ENTRY(backward_plane)(OPERAND(const float, dy), OPERAND(const INDEX, index), OPERAND(const int, bins), OPERAND(float, dx), const int regions,
                           const int planes, const int H, const int W, const int PH, const int PW, const int accumulate) {
  LOCATE(dy);
  LOCATE(index);
  LOCATE(bins);
  LOCATE(dx);
  const int c = get_global_id(0), n = get_global_id(1), outputs = PH * PW, size = H * W;
  dx += n * dx_stride + (long)c * size;
  if (!accumulate)
    for (int i = 0; i < size; i++) dx[i] = 0;
  for (int r = 0; r < regions; r++) {
    if (bins[r * bins_stride] != n) continue;
    global const float* g = dy + r * dy_stride + c * outputs;
    global const INDEX* at = index + r * index_stride + c * outputs;
    for (int o = 0; o < outputs; o++)
      if (at[o] < size) dx[at[o]] += g[o];
  }
}
