/* Augmentation of a staged batch (ocaffe/data/changes/augment.py), one reading of the images: sample, distort, light, erase, mix, subtract the mean, scale.
 *
 * The block holds images of bytes, `image` bytes apart. At byte `table_at` it has 32 words per image (the names below), which the host drew; at byte
 * `label_at` the labels, as floats. A sample is channels x height x width. Order of the steps:
 *   SAMPLE  1: pixel (h, w) is read at x = m0 w + m1 h + m2, y = m3 w + m4 h + m5 of the image, between its four neighbours (bilinear). The image has
 *           image_height x image_width pixels, of which the window at (window_y, window_x) is staged. 2: the nearest pixel instead, for labels.
 *           0: the window is the sample, mirrored by flags.
 *   BORDER  pixels outside of the image are 0: `border`, 1: reflected (the outermost pixel is not repeated), 2: those at its edge
 *   DISTORT 1: SSD's colors, in bytes after each step (distort.py); pixels are rounded to bytes before, halves to even
 *   LIGHT   1: add three numbers to blue, green, red
 *   ERASE   1: set a rectangle to `erased`; 2: to random bytes
 *   MIX     1: share x sample + (1 - share) x partner, or the partner's pixels within a rectangle
 *   MEAN    1: subtract one value per channel
 *   LABEL   number of labels of an image in the label top; 0: no label top. SOFT: the top has `classes` probabilities per image
 *   INTERLEAVED, CHANNELS  as in transform.cl; the number of channels
 * Work-items: (any number for the columns of a row, height, samples). One computes all channels of its pixels.
 */
#include "common.h"

#pragma OPENCL FP_CONTRACT OFF  /* distort.py is reproduced to the bit */

#ifndef CHANNELS
#define CHANNELS 3
#endif
#ifndef INTERLEAVED
#define INTERLEAVED 1
#endif
#ifndef SAMPLE
#define SAMPLE 1
#endif
#ifndef BORDER
#define BORDER 2
#endif
#ifndef DISTORT
#define DISTORT 0
#endif
#ifndef LIGHT
#define LIGHT 0
#endif
#ifndef ERASE
#define ERASE 0
#endif
#ifndef MIX
#define MIX 0
#endif
#ifndef MEAN
#define MEAN 0
#endif
#ifndef LABEL
#define LABEL 0
#endif
#ifndef SOFT
#define SOFT 0
#endif

#define COLUMNS 32
enum {
  WINDOW_HEIGHT, WINDOW_WIDTH, WINDOW_Y, WINDOW_X, IMAGE_HEIGHT, IMAGE_WIDTH, FLAGS, PARTNER,
  MATRIX, /* six floats */
  BRIGHTNESS = 14, CONTRAST, SATURATION, HUE, SHIFT, /* three floats */
  ORDER = 21, /* the source of each channel, two bits each */
  ERASE_Y, ERASE_X, ERASE_HEIGHT, ERASE_WIDTH, SEED,
  SHARE, CUT_Y, CUT_X, CUT_HEIGHT, CUT_WIDTH /* 31 */
};
enum { MIRROR = 1, FLIP = 2, EARLY = 4, BRIGHTEN = 8, STRETCH = 16, SATURATE = 32, TURN = 64, REORDER = 128, MIXED = 256, CUT = 512 };

typedef global const int* Row;
#define FLOAT(at) as_float(row[at])

#if INTERLEAVED
#define AT(y, x, c) (((y) * row[WINDOW_WIDTH] + (x)) * CHANNELS + (c))
#else
#define AT(y, x, c) (((c) * row[WINDOW_HEIGHT] + (y)) * row[WINDOW_WIDTH] + (x))
#endif

/* Return the pixel of an axis of `size` pixels that is shown at `at`. */
INLINE int inside(const int at, const int size) {
#if BORDER == 1
  const int period = max(2 * size - 2, 1);
  const int rest = abs(at) % period;
  return min(rest, period - rest);
#else
  return clamp(at, 0, size - 1);
#endif
}

/* Write the pixel of the sample before any other step. */
INLINE void sampled(global const uchar* x, Row row, const int h, const int w, const int height, const int width, const float border, float* v) {
#if SAMPLE
  const float at_x = clamp(FLOAT(MATRIX) * w + FLOAT(MATRIX + 1) * h + FLOAT(MATRIX + 2), -1e8f, 1e8f);
  const float at_y = clamp(FLOAT(MATRIX + 3) * w + FLOAT(MATRIX + 4) * h + FLOAT(MATRIX + 5), -1e8f, 1e8f);
#if SAMPLE == 2
  const int column = (int)floor(at_x + 0.5f), line = (int)floor(at_y + 0.5f);
  const int from_w = clamp(inside(column, row[IMAGE_WIDTH]) - row[WINDOW_X], 0, row[WINDOW_WIDTH] - 1);
  const int from_h = clamp(inside(line, row[IMAGE_HEIGHT]) - row[WINDOW_Y], 0, row[WINDOW_HEIGHT] - 1);
  const bool known = BORDER || (column >= 0 && column < row[IMAGE_WIDTH] && line >= 0 && line < row[IMAGE_HEIGHT]);
  for (int c = 0; c < CHANNELS; ++c) v[c] = known ? x[AT(from_h, from_w, c)] : border;
#else
  const int left = (int)floor(at_x), top = (int)floor(at_y);
  const float right_share = at_x - left, low_share = at_y - top;
  int xs[2], ys[2];
  bool known_x[2], known_y[2];
  for (int i = 0; i < 2; ++i) { /* within the window: a float may be rounded beyond it, and the host cut it by the exact numbers */
    xs[i] = clamp(inside(left + i, row[IMAGE_WIDTH]) - row[WINDOW_X], 0, row[WINDOW_WIDTH] - 1);
    ys[i] = clamp(inside(top + i, row[IMAGE_HEIGHT]) - row[WINDOW_Y], 0, row[WINDOW_HEIGHT] - 1);
    known_x[i] = BORDER || (left + i >= 0 && left + i < row[IMAGE_WIDTH]);
    known_y[i] = BORDER || (top + i >= 0 && top + i < row[IMAGE_HEIGHT]);
  }
  for (int c = 0; c < CHANNELS; ++c) {
    float line[2];
    for (int i = 0; i < 2; ++i) {
      const float a = known_y[i] && known_x[0] ? x[AT(ys[i], xs[0], c)] : border;
      const float b = known_y[i] && known_x[1] ? x[AT(ys[i], xs[1], c)] : border;
      line[i] = a + right_share * (b - a);
    }
    v[c] = line[0] + low_share * (line[1] - line[0]);
  }
#endif
#else
  const int from_h = row[FLAGS] & FLIP ? height - 1 - h : h, from_w = row[FLAGS] & MIRROR ? width - 1 - w : w;
  for (int c = 0; c < CHANNELS; ++c) v[c] = x[AT(from_h, from_w, c)];
#endif
}

#if DISTORT
constant uchar SHARES[6][3] = {{1, 3, 0}, {1, 0, 2}, {3, 0, 1}, {0, 2, 1}, {0, 1, 3}, {2, 1, 0}};

INLINE float byte_of(const float v) { return clamp(rint(v), 0.0f, 255.0f); }

/* Return `numerator` / n in whole numbers, rounded; 0 for n = 0. */
INLINE int ratio(const int numerator, const int n) { return n ? (2 * numerator + n) / (2 * n) : 0; }

/* Multiply the saturation, or add to the hue, of blue, green, red. */
INLINE void recolored(float* v, const float factor, const float delta) {
  const int b = (int)v[0], g = (int)v[1], r = (int)v[2];
  const int value = max(max(b, g), r), spread = value - min(min(b, g), r);
  int hue = value == r ? g - b : value == g ? b - r + 2 * spread : r - g + 4 * spread;
  hue = (hue * ratio(30 << 12, spread) + 2048) >> 12;
  hue += hue < 0 ? 180 : 0;
  const int saturation = (spread * ratio(255 << 12, value) + 2048) >> 12;
  float turn = byte_of(hue + delta) * 0.033333333333f;
  if (turn >= 6) turn -= 6;
  const int sector = (int)floor(turn);
  const float part = turn - sector;
  const float strength = byte_of(saturation * factor) * 0.0039215686274510f, brightness = value * 0.0039215686274510f;
  for (int c = 0; c < 3; ++c) {
    const int which = SHARES[sector][c];
    const float share = which == 0 ? 0.0f : which == 1 ? 1.0f : which == 2 ? part : 1 - part;
    v[c] = rint((1 - share * strength) * brightness * 255);
  }
}

INLINE void distorted(Row row, float* v) {
  const int flags = row[FLAGS];
  for (int c = 0; c < 3; ++c) {
    v[c] = byte_of(v[c]);
    if (flags & BRIGHTEN) v[c] = byte_of(v[c] + FLOAT(BRIGHTNESS));
    if ((flags & STRETCH) && (flags & EARLY)) v[c] = byte_of(v[c] * FLOAT(CONTRAST));
  }
  if (flags & SATURATE) recolored(v, FLOAT(SATURATION), 0);
  if (flags & TURN) recolored(v, 1, FLOAT(HUE));
  if ((flags & STRETCH) && !(flags & EARLY))
    for (int c = 0; c < 3; ++c) v[c] = byte_of(v[c] * FLOAT(CONTRAST));
  if (flags & REORDER) {
    const float old[3] = {v[0], v[1], v[2]};
    for (int c = 0; c < 3; ++c) {
      const int from = (row[ORDER] >> (2 * c)) & 3;
      v[c] = from == 0 ? old[0] : from == 1 ? old[1] : old[2];
    }
  }
}
#endif

INLINE uint hash(uint n) {
  n = (n ^ (n >> 16)) * 0x7feb352du;
  n = (n ^ (n >> 15)) * 0x846ca68bu;
  return n ^ (n >> 16);
}

INLINE bool within(Row row, const int at, const int h, const int w) {
  return h >= row[at] && w >= row[at + 1] && h < row[at] + row[at + 2] && w < row[at + 1] + row[at + 3];
}

/* Write the pixel of a sample before it is mixed. */
INLINE void augmented(global const uchar* x, Row row, const int h, const int w, const int height, const int width, const float border,
                      const float erased, float* v) {
  sampled(x, row, h, w, height, width, border, v);
#if DISTORT
  distorted(row, v);
#endif
#if LIGHT
  for (int c = 0; c < 3; ++c) v[c] += FLOAT(SHIFT + c);
#endif
#if ERASE
  if (within(row, ERASE_Y, h, w))
    for (int c = 0; c < CHANNELS; ++c) v[c] = ERASE == 2 ? (float)(hash(row[SEED] + ((c * height + h) * width + w) * 0x9e3779b9u) >> 24) : erased;
#endif
}

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

kernel void augment(OPERAND(const uchar, block), MEAN_OPERAND OPERAND(float, y), LABEL_OPERAND const ulong table_at, const ulong label_at,
                    const ulong image, const int height, const int width, const int classes, const float scale, const float border,
                    const float erased) {
  const int h = get_global_id(1);
  const ulong n = get_global_id(2);
  LOCATE(block);
  LOCATE(y);
  Row table = (Row)(block + table_at), row = table + n * COLUMNS;
#if MEAN
  LOCATE(mean);
#endif
#if LABEL
  LOCATE(label);
  global const float* labels = (global const float*)(block + label_at);
#if SOFT
  if (h == 0)
    for (int i = get_global_id(0); i < classes; i += get_global_size(0)) {
      const float share = row[FLAGS] & (MIXED | CUT) ? FLOAT(SHARE) : 1;
      label[n * label_stride + i] = ((int)labels[n] == i ? share : 0) + ((int)labels[row[PARTNER]] == i ? 1 - share : 0);
    }
#else
  if (h == 0 && get_global_id(0) == 0)
    for (int i = 0; i < LABEL; ++i) label[n * label_stride + i] = labels[n * LABEL + i];
#endif
#endif
  if (h >= height) return;
  y += n * y_stride + (ulong)h * width;
  for (int w = get_global_id(0); w < width; w += get_global_size(0)) {
    float v[CHANNELS];
    augmented(block + n * image, row, h, w, height, width, border, erased, v);
#if MIX
    const bool cut = (row[FLAGS] & CUT) && within(row, CUT_Y, h, w);
    if (cut || (row[FLAGS] & MIXED)) {
      float other[CHANNELS];
      augmented(block + row[PARTNER] * image, table + row[PARTNER] * COLUMNS, h, w, height, width, border, erased, other);
      const float share = cut ? 0 : FLOAT(SHARE);
      for (int c = 0; c < CHANNELS; ++c) v[c] = share * v[c] + (1 - share) * other[c];
    }
#endif
    for (int c = 0; c < CHANNELS; ++c) {
#if MEAN
      v[c] -= mean[c];
#endif
      y[(ulong)c * height * width + w] = v[c] * scale;
    }
  }
}
