/* Unpacking and transformation of a staged batch (ocaffe/data/changes/transform.py, floats.py).
 *
 * transform: crop, mirror, subtract the mean, scale, and write the labels:
 *   y[n][c][h][mirror ? width - 1 - w : w] = (x[n][c][y0 + h][x0 + w] - mean) * scale
 * The block holds the images, `image` elements apart. At byte `table_at` it has eight ints per sample (height and width of the staged image; y0, x0;
 * the same position in the mean image; whether to mirror; unused), and at byte `label_at` the labels, as floats.
 *   PIXEL   type of the staged pixels: uchar or float
 *   INTERLEAVED  1: a staged image is height x width x channels, else channels x height x width
 *   MEAN    0: none; 1: one value per channel; 2: an image of mean_height x mean_width
 *   LABEL   number of labels of a sample in the label top; 0: there is no label top
 *   VECTOR  1 (CPU): a work-item writes a row, 16 pixels per step; 0 (GPU): the work-items of a row write neighbouring pixels
 * Work-items: (any number for the columns of a row, rows = channels * height, samples).
 *
 * paste: a window of an image (WindowData), which may cover only a part of the sample; the rest is 0:
 *   y[n][c][h][w] = inside ? (x[n][c][h - top][w - left] - mean[c][h + mean_y][w + mean_x]) * scale : 0
 * The table has height and width of the window, top and left, mean_y and mean_x. Defines and work-items as above; VECTOR is not used.
 *
 * unpack: copy a top of floats from the block: y[n][i] = block[at + (n * count + i) * 4 bytes].
 *   PIECE   elements that a work-item copies
 * Work-items: (count / PIECE, samples).
 */
#include "common.h"

#ifndef PIXEL
#define PIXEL uchar
#endif
#ifndef INTERLEAVED
#define INTERLEAVED 0
#endif
#ifndef MEAN
#define MEAN 0
#endif
#ifndef LABEL
#define LABEL 0
#endif
#ifndef VECTOR
#define VECTOR 0
#endif
#ifndef PIECE
#define PIECE 1
#endif

#if MEAN == 2
#define MEAN_AT(x) mean[x]
#define MEAN_AT16(x) vload16(0, mean + (x))
#elif MEAN == 1
#define MEAN_AT(x) mean[0]
#define MEAN_AT16(x) mean[0]
#else
#define MEAN_AT(x) 0.0f
#define MEAN_AT16(x) 0.0f
#endif

#if MEAN
#define MEAN_OPERAND OPERAND(const float, mean),
#else
#define MEAN_OPERAND
#endif
#if LABEL
#define LABEL_OPERAND OPERAND(float, label),
#else
#define LABEL_OPERAND
#endif
#define ARGUMENTS \
  OPERAND(const uchar, block), MEAN_OPERAND OPERAND(float, y), LABEL_OPERAND const ulong table_at, const ulong label_at, const ulong image, \
      const int rows, const int channels, const int height, const int width, const int mean_height, const int mean_width, const float scale

/* Move y and mean to the first pixel of the work-item's row, and write the label of the sample. */
#if MEAN == 2
#define LOCATE_MEAN \
  LOCATE(mean); \
  mean += ((ulong)c * mean_height + place[4] + h) * mean_width + place[5]
#elif MEAN == 1
#define LOCATE_MEAN \
  LOCATE(mean); \
  mean += c
#else
#define LOCATE_MEAN
#endif
#if LABEL
#define WRITE_LABEL \
  LOCATE(label); \
  if (row == 0 && w == 0) \
    for (int i = 0; i < LABEL; ++i) label[n * label_stride + i] = ((global const float*)(block + label_at))[n * LABEL + i]
#else
#define WRITE_LABEL
#endif
#define BEGIN_ROW \
  const int row = get_global_id(1); \
  const ulong n = get_global_id(2); \
  if (row >= rows) return; \
  LOCATE(block); \
  LOCATE(y); \
  const int c = row / height, h = row % height; \
  global const int* place = (global const int*)(block + table_at) + n * 8; \
  LOCATE_MEAN; \
  y += n * y_stride + (ulong)row * width; \
  int w = get_global_id(0); \
  WRITE_LABEL

#if INTERLEAVED
#define STRIDE channels
#define ROW(c, h, w) (((ulong)(h) * place[1] + (w)) * channels + (c))
#define LOAD16(x) \
  (float16)((x)[0], (x)[STRIDE], (x)[2 * STRIDE], (x)[3 * STRIDE], (x)[4 * STRIDE], (x)[5 * STRIDE], (x)[6 * STRIDE], (x)[7 * STRIDE], \
            (x)[8 * STRIDE], (x)[9 * STRIDE], (x)[10 * STRIDE], (x)[11 * STRIDE], (x)[12 * STRIDE], (x)[13 * STRIDE], (x)[14 * STRIDE], \
            (x)[15 * STRIDE])
#else
#define STRIDE 1
#define ROW(c, h, w) (((ulong)(c) * place[0] + (h)) * place[1] + (w))
#define LOAD16(x) convert_float16(vload16(0, x))
#endif

kernel void transform(ARGUMENTS) {
  BEGIN_ROW;
  global const PIXEL* x = (global const PIXEL*)block + n * image + ROW(c, place[2] + h, place[3]);
  const int mirror = place[6];
#if VECTOR
  for (; w + 16 <= width; w += 16) {
    const float16 v = (LOAD16(x + w * STRIDE) - MEAN_AT16(w)) * scale;
    if (mirror)
      vstore16(v.sfedcba9876543210, 0, y + width - 16 - w);
    else
      vstore16(v, 0, y + w);
  }
#endif
  for (; w < width; w += get_global_size(0)) y[mirror ? width - 1 - w : w] = ((float)x[w * STRIDE] - MEAN_AT(w)) * scale;
}

kernel void paste(ARGUMENTS) {
  BEGIN_ROW;
  const int top = place[2], left = place[3];
  const int begin = h >= top && h < top + place[0] ? left : width, end = left + place[1];
  global const PIXEL* x = (global const PIXEL*)block + n * image + ((ulong)c * place[0]) * place[1];
  for (; w < width; w += get_global_size(0))
    y[w] = w >= begin && w < end ? ((float)x[(h - top) * place[1] + w - left] - MEAN_AT(w)) * scale : 0.0f;
}

kernel void unpack(OPERAND(const uchar, block), OPERAND(float, y), const ulong at, const int count) {
  const ulong n = get_global_id(1);
  LOCATE(block);
  LOCATE(y);
  global const float* x = (global const float*)(block + at) + n * count;
  y += n * y_stride;
  const int begin = get_global_id(0) * PIECE;
  const int end = min(begin + PIECE, count);
  for (int i = begin; i < end; ++i) y[i] = x[i];
}
