/* PSROIPooling: the mean of every bin of every region. Each bin reads separate channels: output (k, row, column) reads channel
 * (k * G + row) * G + column.
 *
 * No defines. `bins` (regions x (1 + 4 G)) holds for each region its image, or -1 if that image does not exist. Then follow the first and end row
 * of each row of bins, and the first and end column of each column of bins. Both are clipped to the plane.
 *
 * Work-items: bins: one for each region. forward: (pieces of a region's outputs, regions). backward: (pixels of an image, images), each gathers
 * from the regions in order. backward_plane: (planes, images), each owns its plane and loops over the regions in order; for CPUs.
 */
#include "boxes.h" /* edges are rounded twice, as in Caffe: no contraction */

#define FAR 1e8f /* beyond every plane, and fits an int */

void OWN(edges)(global int* result, const int count, const int size, const float from, const float to) {
  const float extent = quotient(fmax(to - from, 0.1f), (float)count);
  for (int i = 0; i < count; i++) {
    result[2 * i] = clamp((int)clamp(floor(i * extent + from), -FAR, FAR), 0, size);
    result[2 * i + 1] = clamp((int)clamp(ceil((i + 1) * extent + from), -FAR, FAR), 0, size);
  }
}

kernel void ENTRY(bins)(OPERAND(const float, rois), OPERAND(int, bins), const int count, const int images, const int H, const int W, const int G,
                 const float scale) {
  LOCATE(rois);
  LOCATE(bins);
  const int r = get_global_id(0);
  if (r >= count) return;
  rois += r * rois_stride;
  bins += r * bins_stride;
  bins[0] = rois[0] > -1 && rois[0] < images ? (int)rois[0] : -1;
  edges(bins + 1, G, H, round(rois[2]) * scale, (round(rois[4]) + 1) * scale);
  edges(bins + 1 + 2 * G, G, W, round(rois[1]) * scale, (round(rois[3]) + 1) * scale);
}

/* The bin of region r that reads channel c; c is also the number of its output. */
#define BIN(r, c) \
  global const int *own = bins + (r) * bins_stride, *rows = own + 1 + 2 * ((c) / G % G), *columns = own + 1 + 2 * G + 2 * ((c) % G);

#define AREA (max(rows[1] - rows[0], 0) * max(columns[1] - columns[0], 0))

kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(const int, bins), OPERAND(float, y), const int count, const int piece, const int H, const int W,
                    const int G) {
  LOCATE(x);
  LOCATE(bins);
  LOCATE(y);
  const int r = get_global_id(1), from = get_global_id(0) * piece;
  for (int i = from; i < min(from + piece, count); i++) {
    BIN(r, i)
    float sum = 0;
    if (own[0] >= 0) {
      global const float* plane = x + own[0] * x_stride + (long)i * H * W;
      for (int h = rows[0]; h < rows[1]; h++)
        for (int w = columns[0]; w < columns[1]; w++) sum += plane[h * W + w];
    }
    y[r * y_stride + i] = own[0] < 0 ? NAN : AREA > 0 ? sum / AREA : 0;
  }
}

kernel void ENTRY(backward)(OPERAND(const float, dy), OPERAND(const int, bins), OPERAND(float, dx), const int regions, const int planes, const int H,
                     const int W, const int G, const int accumulate) {
  LOCATE(dy);
  LOCATE(bins);
  LOCATE(dx);
  const int i = get_global_id(0), n = get_global_id(1), h = i / W % H, w = i % W, c = i / (H * W);
  if (c >= planes) return;
  float sum = 0;
  for (int r = 0; r < regions; r++) {
    BIN(r, c)
    if (own[0] == n && h >= rows[0] && h < rows[1] && w >= columns[0] && w < columns[1]) sum += dy[r * dy_stride + c] / AREA;
  }
  dx += n * dx_stride + i;
  *dx = accumulate ? *dx + sum : sum;
}

kernel void ENTRY(backward_plane)(OPERAND(const float, dy), OPERAND(const int, bins), OPERAND(float, dx), const int regions, const int planes, const int H,
                           const int W, const int G, const int accumulate) {
  LOCATE(dy);
  LOCATE(bins);
  LOCATE(dx);
  const int c = get_global_id(0), n = get_global_id(1);
  dx += n * dx_stride + (long)c * H * W;
  if (!accumulate)
    for (int i = 0; i < H * W; i++) dx[i] = 0;
  for (int r = 0; r < regions; r++) {
    BIN(r, c)
    if (own[0] != n || AREA == 0) continue;
    const float share = dy[r * dy_stride + c] / AREA;
    for (int h = rows[0]; h < rows[1]; h++)
      for (int w = columns[0]; w < columns[1]; w++) dx[h * W + w] += share;
  }
}
