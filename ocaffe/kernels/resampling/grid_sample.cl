/* Values of images at the places of a grid, interpolated between four pixels or taken from the nearest, and both gradients.
 *
 *   forward        y (N x C x points) from x (N x C x height x width) and the grid (N x points x 2: column, row; -1 and 1 are the ends)
 *   backward_x     dx: one work-item for each plane adds the gradients of all points in their order
 *   backward_grid  dgrid: the sum over all channels
 *
 * Defines: NEAREST: no interpolation; BORDER: places outside take the value at the border, else 0.
 * PIXELS: the grid has places in pixels. PLANAR: the grid is N x 2 x points, and with
 * ROWS_FIRST its rows come first.
 * Work-items: forward and backward_grid: (pieces of `piece` points, images); backward_x: (channels, images).
 */
#include "common.h"

#ifndef NEAREST
#define NEAREST 0
#endif
#ifndef BORDER
#define BORDER 0
#endif
#ifndef PIXELS
#define PIXELS 0
#endif
#ifndef ROWS_FIRST
#define ROWS_FIRST 0
#endif
#ifdef PLANAR
#define PLACE(grid, p, points) (float2)((grid)[(p) + ROWS_FIRST * (points)], (grid)[(p) + !ROWS_FIRST * (points)])
#define PUT(value, grid, p, points) (grid)[(p) + ROWS_FIRST * (points)] = (value).x, (grid)[(p) + !ROWS_FIRST * (points)] = (value).y
#else
#define PLACE(grid, p, points) vload2(p, grid)
#define PUT(value, grid, p, points) vstore2(value, p, grid)
#endif

/* Return the place in pixels, and in `slope` its derivative by the grid's value. */
static float OWN(place_of)(const float g, const int size, const int corners, float* slope) {
  *slope = PIXELS ? 1 : 0.5f * (corners ? size - 1 : size);
  const float place = PIXELS ? g : corners ? (g + 1) * 0.5f * (size - 1) : ((g + 1) * size - 1) * 0.5f;
  if (!BORDER) return place;
  if (!(place > 0 && place < size - 1)) *slope = 0;
  return fmin(fmax(place, 0.0f), (float)(size - 1));
}

typedef struct {
  int at[4];       /* indices of the four pixels in a plane; -1: outside */
  float weight[4]; /* their weights */
  float across[4], down[4]; /* derivatives of the weights by the grid's values */
} OWN(Corners);

static Corners OWN(corners_of)(const float2 g, const int height, const int width, const int align) {
  float slope_x, slope_y;
  const float x = place_of(g.x, width, align, &slope_x), y = place_of(g.y, height, align, &slope_y);
  Corners c;
  /* a place far outside, or NaN, has no pixels; it must not overflow an int */
  const int far = !(x > -2 && x < width + 1 && y > -2 && y < height + 1);
  const float left = far ? -2 : NEAREST ? rint(x) : floor(x), upper = far ? -2 : NEAREST ? rint(y) : floor(y);
  for (int k = 0; k < 4; k++) {
    const int right = k & 1, lower = k >> 1, column = (int)left + right, row = (int)upper + lower;
    const float a = right ? x - left : 1 - (x - left), b = lower ? y - upper : 1 - (y - upper);
    const int inside = column >= 0 && column < width && row >= 0 && row < height && !(NEAREST && k);
    c.at[k] = inside ? row * width + column : -1;
    c.weight[k] = NEAREST ? 1 : a * b;
    c.across[k] = NEAREST ? 0 : slope_x * (right ? b : -b);
    c.down[k] = NEAREST ? 0 : slope_y * (lower ? a : -a);
  }
  return c;
}

kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(const float, grid), OPERAND(float, y), const int points, const int piece, const int channels,
                    const int height, const int width, const int align) {
  LOCATE(x);
  LOCATE(grid);
  LOCATE(y);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, points);
  for (int p = first; p < last; p++) {
    const Corners c = corners_of(PLACE(grid + n * grid_stride, p, points), height, width, align);
    for (int channel = 0; channel < channels; channel++) {
      global const float* plane = x + n * x_stride + (long)channel * height * width;
      float sum = 0;
      for (int k = 0; k < 4; k++)
        if (c.at[k] >= 0) sum += c.weight[k] * plane[c.at[k]];
      y[n * y_stride + (long)channel * points + p] = sum;
    }
  }
}

kernel void ENTRY(backward_x)(OPERAND(const float, dy), OPERAND(const float, grid), OPERAND(float, dx), const int points, const int height,
                       const int width, const int align, const int accumulate) {
  LOCATE(dy);
  LOCATE(grid);
  LOCATE(dx);
  const int channel = get_global_id(0), n = get_global_id(1);
  global float* plane = dx + n * dx_stride + (long)channel * height * width;
  if (!accumulate)
    for (int i = 0; i < height * width; i++) plane[i] = 0;
  for (int p = 0; p < points; p++) {
    const Corners c = corners_of(PLACE(grid + n * grid_stride, p, points), height, width, align);
    const float gradient = dy[n * dy_stride + (long)channel * points + p];
    for (int k = 0; k < 4; k++)
      if (c.at[k] >= 0) plane[c.at[k]] += c.weight[k] * gradient;
  }
}

kernel void ENTRY(backward_grid)(OPERAND(const float, dy), OPERAND(const float, x), OPERAND(const float, grid), OPERAND(float, dgrid), const int points,
                          const int piece, const int channels, const int height, const int width, const int align, const int accumulate) {
  LOCATE(dy);
  LOCATE(x);
  LOCATE(grid);
  LOCATE(dgrid);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, points);
  for (int p = first; p < last; p++) {
    const Corners c = corners_of(PLACE(grid + n * grid_stride, p, points), height, width, align);
    float2 sum = 0;
    for (int channel = 0; channel < channels; channel++) {
      global const float* plane = x + n * x_stride + (long)channel * height * width;
      const float gradient = dy[n * dy_stride + (long)channel * points + p];
      for (int k = 0; k < 4; k++)
        if (c.at[k] >= 0) sum += gradient * plane[c.at[k]] * (float2)(c.across[k], c.down[k]);
    }
    global float* to = dgrid + n * dgrid_stride;
    if (accumulate) sum += PLACE(to, p, points);
    PUT(sum, to, p, points);
  }
}
