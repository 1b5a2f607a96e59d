/* Values of an image in the bins of regions: means of values that are one pixel apart, interpolated between four pixels, and both gradients.
 *
 *   forward        y (R x C x points)
 *   backward_x     dx: one work-item for each plane adds the gradients of all regions in their order
 *   backward_bins  dplaces (R x 2 x points): by the row and column of bins with one value, the sum over all channels; 0 at the last row and column
 *
 * `roi` (R x 5) begins with the image. `bins` (R x 4 x points) has the row and column of the first value and the numbers of values down and across.
 * A bin without values is 0. A place outside takes the value at the border. A region whose image does not exist gives NaN.
 * No defines. Work-items: forward: (pieces of `piece` elements of a region, regions); backward_x: (channels, images);
 * backward_bins: (pieces of `piece` points, regions).
 */
#include "common.h"

typedef struct {
  int at[4]; /* indices of the four pixels in a plane */
  float weight[4];
} OWN(Value);

static Value OWN(value_of)(const float row, const float column, const int height, const int width) {
  const float y = fmin(fmax(row, 0.0f), (float)(height - 1)), x = fmin(fmax(column, 0.0f), (float)(width - 1));
  const int upper = (int)y, left = (int)x;
  Value v;
  for (int k = 0; k < 4; k++) {
    const int lower = k >> 1, right = k & 1;
    v.at[k] = min(upper + lower, height - 1) * width + min(left + right, width - 1);
    v.weight[k] = (lower ? y - upper : 1 - (y - upper)) * (right ? x - left : 1 - (x - left));
  }
  return v;
}

kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(const float, roi), OPERAND(const float, bins), OPERAND(float, y), const int count,
                    const int piece, const int images, const int height, const int width, const int points) {
  LOCATE(x);
  LOCATE(roi);
  LOCATE(bins);
  LOCATE(y);
  const int number = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count);
  const int image = (int)roi[number * roi_stride];
  for (int e = first; e < last; e++) {
    global const float* bin = bins + number * bins_stride + e % points;
    const float row = bin[0], column = bin[points];
    const int down = (int)bin[2 * points], across = (int)bin[3 * points];
    float sum = 0;
    if (image >= 0 && image < images) {
      global const float* plane = x + image * x_stride + (long)(e / points) * height * width;
      for (int i = 0; i < down; i++)
        for (int j = 0; j < across; j++) {
          const Value v = value_of(row + i, column + j, height, width);
          for (int k = 0; k < 4; k++) sum += v.weight[k] * plane[v.at[k]];
        }
      sum /= max(down * across, 1);
    } else {
      sum = NAN;
    }
    y[number * y_stride + e] = sum;
  }
}

kernel void ENTRY(backward_x)(OPERAND(const float, dy), OPERAND(const float, roi), OPERAND(const float, bins), OPERAND(float, dx), const int regions,
                       const int height, const int width, const int points, const int accumulate) {
  LOCATE(dy);
  LOCATE(roi);
  LOCATE(bins);
  LOCATE(dx);
  const int channel = get_global_id(0), n = get_global_id(1);
  global float* plane = dx + n * dx_stride + (long)channel * height * width;
  if (!accumulate)
    for (int i = 0; i < height * width; i++) plane[i] = 0;
  for (int number = 0; number < regions; number++) {
    if ((int)roi[number * roi_stride] != n) continue;
    for (int p = 0; p < points; p++) {
      global const float* bin = bins + number * bins_stride + p;
      const float row = bin[0], column = bin[points];
      const int down = (int)bin[2 * points], across = (int)bin[3 * points];
      const float gradient = dy[number * dy_stride + (long)channel * points + p] / max(down * across, 1);
      for (int i = 0; i < down; i++)
        for (int j = 0; j < across; j++) {
          const Value v = value_of(row + i, column + j, height, width);
          for (int k = 0; k < 4; k++) plane[v.at[k]] += v.weight[k] * gradient;
        }
    }
  }
}

kernel void ENTRY(backward_bins)(OPERAND(const float, dy), OPERAND(const float, x), OPERAND(const float, roi), OPERAND(const float, bins),
                          OPERAND(float, dplaces), const int points, const int piece, const int images, const int channels, const int height,
                          const int width) {
  LOCATE(dy);
  LOCATE(x);
  LOCATE(roi);
  LOCATE(bins);
  LOCATE(dplaces);
  const int number = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, points);
  const int image = (int)roi[number * roi_stride];
  for (int p = first; p < last; p++) {
    global const float* bin = bins + number * bins_stride + p;
    const float row = fmin(fmax(bin[0], 0.0f), (float)(height - 1)), column = fmin(fmax(bin[points], 0.0f), (float)(width - 1));
    const int upper = (int)row, left = (int)column;
    const float b = row - upper, a = column - left;
    float down = 0, across = 0;
    if (image >= 0 && image < images && (int)bin[2 * points] > 0 && (int)bin[3 * points] > 0 && upper + 1 < height && left + 1 < width)
      for (int channel = 0; channel < channels; channel++) {
        global const float* corner = x + image * x_stride + ((long)channel * height + upper) * width + left;
        const float gradient = dy[number * dy_stride + (long)channel * points + p];
        down += gradient * ((1 - a) * (corner[width] - corner[0]) + a * (corner[width + 1] - corner[1]));
        across += gradient * ((1 - b) * (corner[1] - corner[0]) + b * (corner[width + 1] - corner[width]));
      }
    dplaces[number * dplaces_stride + p] = down;
    dplaces[number * dplaces_stride + points + p] = across;
  }
}
