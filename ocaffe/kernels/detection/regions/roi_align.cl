/* Means of interpolated values in the bins of regions, and the gradient of the image.
 *
 *   forward   y (R x C x rows x columns)
 *   backward  dx: one work-item for each plane adds the gradients of all regions in their order
 *
 * A region is (image, x1, y1, x2, y2). A bin is the mean of ratio x ratio values, or (ratio 0) of about one value per pixel.
 * No defines. Work-items: forward: (pieces of `piece` elements of a region, regions); backward: (channels, images).
 */
#include "common.h"

/* A region in pixels of the plane: its corner, the size of a bin, and the number of values along each axis of a bin. */
typedef struct {
  int image;
  float x, y, width, height;
  int across, down;
} OWN(Region);

static Region OWN(region_of)(global const float* roi, const float scale, const int rows, const int columns, const int ratio, const int half_pixel) {
  const float offset = half_pixel ? 0.5f : 0, least = half_pixel ? -FLT_MAX : 1;
  Region r;
  r.image = (int)roi[0];
  r.x = roi[1] * scale - offset;
  r.y = roi[2] * scale - offset;
  r.width = fmax(roi[3] * scale - offset - r.x, least) / columns;
  r.height = fmax(roi[4] * scale - offset - r.y, least) / rows;
  r.across = ratio > 0 ? ratio : (int)ceil(r.width);
  r.down = ratio > 0 ? ratio : (int)ceil(r.height);
  return r;
}

typedef struct {
  int at[4]; /* indices of the four pixels in a plane; at[0] is -1 if the value is outside */
  float weight[4];
} OWN(Value);

/* Return the pixels and weights of value (i, j) in the bin (row, column). */
static Value OWN(value_of)(const Region r, const int row, const int column, const int i, const int j, const int height, const int width) {
  float y = r.y + r.height * (row + (i + 0.5f) / r.down), x = r.x + r.width * (column + (j + 0.5f) / r.across);
  Value v;
  v.at[0] = -1;
  if (!(y >= -1 && y <= height && x >= -1 && x <= width)) return v;
  y = fmin(fmax(y, 0.0f), (float)(height - 1));
  x = fmin(fmax(x, 0.0f), (float)(width - 1));
  const int upper = (int)y, left = (int)x;
  for (int k = 0; k < 4; k++) {
    const int lower = k >> 1, right = k & 1;
    v.at[k] = min(upper + lower, height - 1) * width + min(left + right, width - 1);
    v.weight[k] = (lower ? y - upper : 1 - (y - upper)) * (right ? x - left : 1 - (x - left));
  }
  return v;
}

kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(const float, roi), OPERAND(float, y), const int count, const int piece, const int images,
                    const int height, const int width, const int rows, const int columns, const float scale, const int ratio, const int half_pixel) {
  LOCATE(x);
  LOCATE(roi);
  LOCATE(y);
  const int number = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count);
  const Region r = region_of(roi + number * roi_stride, scale, rows, columns, ratio, half_pixel);
  for (int e = first; e < last; e++) {
    const int column = e % columns, row = e / columns % rows, channel = e / (columns * rows);
    float sum = 0;
    if (r.image >= 0 && r.image < images) {
      global const float* plane = x + r.image * x_stride + (long)channel * height * width;
      for (int i = 0; i < r.down; i++)
        for (int j = 0; j < r.across; j++) {
          const Value v = value_of(r, row, column, i, j, height, width);
          if (v.at[0] >= 0)
            for (int k = 0; k < 4; k++) sum += v.weight[k] * plane[v.at[k]];
        }
      sum /= max(r.down * r.across, 1);
    } else {
      sum = NAN;
    }
    y[number * y_stride + e] = sum;
  }
}

kernel void ENTRY(backward)(OPERAND(const float, dy), OPERAND(const float, roi), OPERAND(float, dx), const int regions, const int height, const int width,
                     const int rows, const int columns, const float scale, const int ratio, const int half_pixel, const int accumulate) {
  LOCATE(dy);
  LOCATE(roi);
  LOCATE(dx);
  const int channel = get_global_id(0), n = get_global_id(1);
  global float* plane = dx + n * dx_stride + (long)channel * height * width;
  if (!accumulate)
    for (int i = 0; i < height * width; i++) plane[i] = 0;
  for (int number = 0; number < regions; number++) {
    const Region r = region_of(roi + number * roi_stride, scale, rows, columns, ratio, half_pixel);
    if (r.image != n) continue;
    for (int bin = 0; bin < rows * columns; bin++) {
      const float gradient = dy[number * dy_stride + (long)channel * rows * columns + bin] / max(r.down * r.across, 1);
      for (int i = 0; i < r.down; i++)
        for (int j = 0; j < r.across; j++) {
          const Value v = value_of(r, bin / columns, bin % columns, i, j, height, width);
          if (v.at[0] >= 0)
            for (int k = 0; k < 4; k++) plane[v.at[k]] += v.weight[k] * gradient;
        }
    }
  }
}
