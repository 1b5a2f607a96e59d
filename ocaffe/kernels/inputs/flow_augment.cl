/* FlowNet's augmentation of images and flow (ocaffe/kernels/inputs/flow_augment.py, which numbers the coefficients and the columns of a row).
 *
 *   draw      y: 42 coefficients for each sample, as FlowNet passes them on: those whose default is 1 as logarithms (LOGARITHMS, a bit for each).
 *             `rows` has the distributions. `given`: coefficients to which the drawn ones are added, or which they replace. `seen`: the number of
 *             forward passes; without it the iteration counts. The places of the corners are drawn again, at most 50 times, until all lie in the image.
 *             GIVEN, SEEN: the operands exist. ADD, REPLACE: the mode. SPATIAL: rows of the first six coefficients.
 *   settle    table: the coefficients without logarithms, the map from pixels of the sample to those of the image, and whether the batch needs each
 *             kind of change. NEAR: a coefficient nearer to its default is the default
 *   augment   y: the image at the places of the map, then the changes of colors, brightness and noise. EIGEN: `vectors` are the rows of a 3 x 3 matrix, and
 *             `space` has the mean and the largest magnitude of the batch along them. Other images than those of 3 channels are only moved
 *   move      y: the flow between the moved images
 *   choose    table: whether a sample is black, and the rows and columns of its border, from the distributions of both
 *   blacken   y: x with a border of zeros, or all of `black`, or zeros
 * Work-items: draw, settle, choose: (samples); the others: (pieces of `piece` pixels, samples).
 */
#include "common.h"

#ifndef GIVEN
#define GIVEN 0
#endif
#ifndef SEEN
#define SEEN 0
#endif
#ifndef ADD
#define ADD 0
#endif
#ifndef REPLACE
#define REPLACE 0
#endif
#ifndef SPATIAL
#define SPATIAL 0
#endif
#ifndef EIGEN
#define EIGEN 0
#endif
#ifndef BLACK
#define BLACK 0
#endif
#ifndef LOGARITHMS
#define LOGARITHMS 0UL
#endif
#ifndef NEAR
#define NEAR 0.0f
#endif
#ifndef STEP_ITERATION
#define STEP_ITERATION 1
#define STEP_PASS 2
#define STEP_SAMPLE 3
#define STEP_OTHER_RANKS 5
#endif

#if GIVEN
#define GIVEN_OPERAND OPERAND(const float, given),
#else
#define GIVEN_OPERAND
#endif
#if SEEN
#define SEEN_OPERAND OPERAND(const float, seen),
#else
#define SEEN_OPERAND
#endif
#if EIGEN
#define EIGEN_OPERANDS OPERAND(const float, vectors), OPERAND(const float, space),
#else
#define EIGEN_OPERANDS
#endif
#if BLACK
#define BLACK_OPERAND OPERAND(const float, black),
#else
#define BLACK_OPERAND
#endif

#define IS_LOG(i) ((LOGARITHMS >> (i)) & 1)
#define TRIES 50

/* The coefficients. */
enum {
  MIRROR, DX, DY, ANGLE, ZOOM_X, ZOOM_Y, SPATIALS, GAMMA = SPATIALS, BRIGHTNESS, CONTRAST, COLOR, POW_NOMEAN = COLOR + 3, ADD_NOMEAN = POW_NOMEAN + 3,
  MULT_NOMEAN = ADD_NOMEAN + 3, POW_MEAN = MULT_NOMEAN + 3, ADD_MEAN = POW_MEAN + 3, MULT_MEAN = ADD_MEAN + 3, LIGHT_POW = MULT_MEAN + 3, LIGHT_ADD,
  LIGHT_MULT, TURN, FOG_AMOUNT, FOG_SIZE, BLUR_ANGLE, BLUR_SIZE, SHADOW_ANGLE, SHADOW_DISTANCE, SHADOW_STRENGTH, NOISE, COEFFICIENTS
};
/* Further columns of the table. */
enum { MAP = COEFFICIENTS, SHADOW_X = MAP + 6, SHADOW_Y, NEEDS_EIGEN, NEEDS_COLOR, NEEDS_EFFECT, COLUMNS };
/* The columns of a distribution. */
enum { KIND, MEAN, SPREAD, PROB, EXPONENT, ROUNDED, FACTOR, SCHEDULED, ABSENT, FIRST, SECOND, RULE, ROW };
enum { UNIFORM, GAUSSIAN, BERNOULLI, MAYBE_UNIFORM, MAYBE_GAUSSIAN };

/* Two normal numbers (Box and Muller, 1958). */
static float2 normals(const uint2 words) {
  const float radius = sqrt(-2.0f * log(((float)words.x + 1.0f) * 0x1p-32f)), turn = 2.0f * uniform01(words.y);
  return radius * (float2)(cospi(turn), sinpi(turn));
}

/* A number of a distribution, as caffe_rng_generate of FlowNet 2 makes it. */
static float drawn(global const float* row, const uint4 words, const float share, const int is_bool) {
  const int kind = (int)row[KIND];
  const float spread = row[SPREAD] * (row[SCHEDULED] != 0 ? share : 1.0f);
  const int hit = row[PROB] > 0 && uniform01(words.x) < row[PROB];
  float value;
  if (kind == BERNOULLI) {
    value = hit;
  } else {
    if (kind >= MAYBE_UNIFORM && !hit) {
      if (!isnan(row[ABSENT])) return row[ABSENT];
      value = 0;
    } else if (!(spread > 0)) {
      value = row[MEAN];
    } else {
      value = row[MEAN] + spread * (kind == GAUSSIAN || kind == MAYBE_GAUSSIAN ? normals(words.zw).x : 2 * uniform01(words.y) - 1);
    }
    if (row[EXPONENT] != 0) value = exp(value);
  }
  if (is_bool) value = value != 0;
  if (row[ROUNDED] != 0) value = round(value);
  value *= row[FACTOR];
  return is_bool ? value != 0 : value;
}

/* `to` is in global memory: private arrays with indices from memory would be scratch memory on AMD's GPUs. */
static void apply(global const float* row, const float value, global float* to, const int replace) {
  const int first = (int)row[FIRST], second = (int)row[SECOND];
  if (row[RULE] != 0) { /* squeeze: wider and lower */
    to[first] += log(value);
    to[second] -= log(value);
    return;
  }
  const float stored = IS_LOG(first) ? log(value) : value;
  to[first] = replace ? stored : to[first] + stored;
  if (second >= 0) to[second] = replace ? stored : to[second] + stored;
}

/* The map x' = m0 x + m2 y + m4, y' = m1 x + m3 y + m5 from a sample to the image: mirror, turn, shift and scale around the centers. `c`: the first six
   coefficients. */
static void map_of(const float* c, const float2 from, const float2 to, float* m) {
  const float s = sin(c[ANGLE]), k = cos(c[ANGLE]), flip = c[MIRROR] != 0 ? -1.0f : 1.0f;
  const float2 zoom = 1.0f / (float2)(c[ZOOM_X], c[ZOOM_Y]), center = (float2)(-0.5f * flip, -0.5f) * from;
  m[0] = flip * k * zoom.x;
  m[1] = flip * s * zoom.y;
  m[2] = -s * zoom.x;
  m[3] = k * zoom.y;
  m[4] = (center.x * k - center.y * s + c[DX] * from.x) * zoom.x + 0.5f * to.x;
  m[5] = (center.x * s + center.y * k + c[DY] * from.y) * zoom.y + 0.5f * to.y;
}

#define AT_X(m, x, y) ((x) * (m)[0] + (y) * (m)[2] + (m)[4])
#define AT_Y(m, x, y) ((x) * (m)[1] + (y) * (m)[3] + (m)[5])

/* Whether all corners of the sample lie in the image, with a pixel to the right of them and below. */
static int fits(global const float* stored, const int height, const int width, const int rows, const int columns) {
  float c[SPATIALS], m[6];
  for (int i = 0; i < SPATIALS; i++) c[i] = IS_LOG(i) ? exp(stored[i]) : stored[i];
  map_of(c, (float2)(columns, rows), (float2)(width, height), m);
  for (int corner = 0; corner < 4; corner++) {
    const float x = corner & 1 ? columns - 1 : 0, y = corner & 2 ? rows - 1 : 0;
    const float at_x = floor(AT_X(m, x, y)), at_y = floor(AT_Y(m, x, y));
    if (at_x < 0 || at_x > width - 2 || at_y < 0 || at_y > height - 2) return 0;
  }
  return 1;
}

kernel void draw(OPERAND(const uint, step), OPERAND(const float, rows), GIVEN_OPERAND SEEN_OPERAND OPERAND(float, y), const uint key0, const uint key1,
                 const int count, const int height, const int width, const int cropped_height, const int cropped_width, const float initial,
                 const float final, const float half_life) {
  const int n = get_global_id(0);
  LOCATE(step);
  LOCATE(rows);
  LOCATE(y);
  y += n * y_stride;
#if SEEN
  const float passes = seen[seen_offset];
#else
  const float passes = (float)step[STEP_ITERATION] + 1;
#endif
  const float share = initial + (final - initial) * (2 / (1 + exp(-1.0986f * passes / half_life)) - 1);
  const uint sample = n * (step[STEP_OTHER_RANKS] + 1) + step[STEP_SAMPLE];
  const uint2 key = (uint2)(key0, key1);
  float kept[SPATIALS];
  for (int i = 0; i < COEFFICIENTS; i++) {
#if GIVEN
    y[i] = (ADD || REPLACE) && !(REPLACE && SPATIAL && i < SPATIALS) ? given[given_offset + n * given_stride + i] : 0;
#else
    y[i] = 0;
#endif
  }
  for (int i = 0; i < SPATIALS; i++) kept[i] = y[i];
  if (SPATIAL) {
    int good = 0, tries = 0;
    while (!good && tries < TRIES) {
      for (int i = 0; i < SPATIALS; i++) y[i] = 0;
      for (int r = 0; r < SPATIAL; r++) {
        const uint4 words = philox((uint4)(r | tries << 8, sample, step[STEP_ITERATION], step[STEP_PASS]), key);
        apply(rows + r * ROW, drawn(rows + r * ROW, words, share, (int)rows[r * ROW + FIRST] == MIRROR), y, 1);
      }
      for (int i = 0; i < SPATIALS; i++) y[i] += kept[i];
      good = fits(y, height, width, cropped_height, cropped_width);
      tries++;
    }
    if (tries >= TRIES) /* as in the fork, a fit at the last try does not count */
      for (int i = 0; i < SPATIALS; i++) y[i] = kept[i];
  }
  for (int r = SPATIAL; r < count; r++) {
    const uint4 words = philox((uint4)(r, sample, step[STEP_ITERATION], step[STEP_PASS]), key);
    apply(rows + r * ROW, drawn(rows + r * ROW, words, share, 0), y, !ADD);
  }
}

kernel void settle(OPERAND(const float, coefficients), OPERAND(float, table), const int samples, const int height, const int width,
                   const int cropped_height, const int cropped_width) {
  const int n = get_global_id(0);
  LOCATE(coefficients);
  LOCATE(table);
  table += n * table_stride;
  int eigen = 0, color = 0, effect = 0;
  float c[COEFFICIENTS];
  for (int sample = 0; sample < samples; sample++) { /* the own one last */
    const int other = (n + 1 + sample) % samples;
    for (int i = 0; i < COEFFICIENTS; i++) {
      const float stored = coefficients[other * coefficients_stride + i], usual = IS_LOG(i) ? 1.0f : 0.0f;
      c[i] = IS_LOG(i) ? exp(stored) : stored;
      if (fabs(c[i] - usual) < NEAR) c[i] = usual;
      color |= i >= GAMMA && i < POW_NOMEAN && c[i] != usual;
      eigen |= i >= POW_NOMEAN && i <= TURN && c[i] != usual;
    }
    effect |= (c[FOG_AMOUNT] != 0 && c[FOG_SIZE] != 0) || c[BLUR_SIZE] > 0 || c[SHADOW_STRENGTH] > 0 || c[NOISE] > 0;
  }
  float m[6];
  map_of(c, (float2)(cropped_width, cropped_height), (float2)(width, height), m);
  for (int i = 0; i < COEFFICIENTS; i++) table[i] = c[i];
  for (int i = 0; i < 6; i++) table[MAP + i] = m[i];
  table[SHADOW_X] = cos(c[SHADOW_ANGLE]);
  table[SHADOW_Y] = sin(c[SHADOW_ANGLE]);
  table[NEEDS_EIGEN] = eigen;
  table[NEEDS_COLOR] = color;
  table[NEEDS_EFFECT] = effect;
}

static float power(const float base, const float exponent) { return copysign(pow(fabs(base), exponent), base); }

#if EIGEN
/* Change colors along the eigenvectors of the colors of images. */
static float3 along_eigenvectors(const float3 rgb, global const float* row, global const float* vectors, global const float* space, const float most) {
  float eig[3], limit[3], light = 0;
  const float pixel[3] = {rgb.x - space[0], rgb.y - space[1], rgb.z - space[2]};
  const float longest = sqrt(space[3] * space[3] + space[4] * space[4] + space[5] * space[5]);
  for (int c = 0; c < 3; c++) {
    global const float* v = vectors + 3 * c;
    limit[c] = space[3 + c];
    float mean = v[0] * space[0] + v[1] * space[1] + v[2] * space[2];
    eig[c] = v[0] * pixel[0] + v[1] * pixel[1] + v[2] * pixel[2];
    if (limit[c] > 1e-2f) {
      mean /= limit[c];
      eig[c] = (power(eig[c] / limit[c], row[POW_NOMEAN + c]) + row[ADD_NOMEAN + c]) * row[MULT_NOMEAN + c];
    }
    eig[c] += mean;
  }
  if (limit[0] > 1e-2f) eig[0] = (power(eig[0], row[POW_MEAN]) + row[ADD_MEAN]) * row[MULT_MEAN];
  const float saturation = sqrt(eig[1] * eig[1] + eig[2] * eig[2]);
  float changed = saturation;
  if (saturation > 1e-2f) changed = fmax(pow(saturation, row[POW_MEAN + 1]) + row[ADD_MEAN + 1], 0.0f) * row[MULT_MEAN + 1];
  if (row[TURN] != 0) {
    const float k = cos(row[TURN]), s = sin(row[TURN]), first = k * eig[1] - s * eig[2];
    eig[2] = s * eig[1] + k * eig[2];
    eig[1] = first;
  }
  for (int c = 0; c < 3; c++)
    if (limit[c] > 1e-2f) eig[c] *= limit[c];
  if (longest > 1e-2f) light = sqrt(eig[0] * eig[0] + eig[1] * eig[1] + eig[2] * eig[2]) / longest;
  if (saturation > 1e-2f) {
    eig[1] = eig[1] / saturation * changed;
    eig[2] = eig[2] / saturation * changed;
  }
  if (longest > 1e-2f) {
    const float length = sqrt(eig[0] * eig[0] + eig[1] * eig[1] + eig[2] * eig[2]);
    light = fmax(pow(light, row[LIGHT_POW]) + row[LIGHT_ADD], 0.0f) * row[LIGHT_MULT] * longest;
    if (length > 1e-2f)
      for (int c = 0; c < 3; c++) eig[c] = fmin(eig[c] / length * light, limit[c]);
  }
  const float3 sum = (float3)(vectors[0], vectors[1], vectors[2]) * eig[0] + (float3)(vectors[3], vectors[4], vectors[5]) * eig[1] +
                     (float3)(vectors[6], vectors[7], vectors[8]) * eig[2];
  return fmax(fmin(sum, most), 0.0f);
}
#endif

static float3 recolored(const float3 rgb, global const float* row, const float most) {
  const float3 colored = rgb * (float3)(row[COLOR], row[COLOR + 1], row[COLOR + 2]);
  const float keep = (rgb.x + rgb.y + rgb.z) / (colored.x + colored.y + colored.z + 0.01f);
  const float3 bright = pow(clamp(colored * keep, 0.0f, 1.0f), (float3)(row[GAMMA])) + row[BRIGHTNESS];
  return clamp(0.5f + (bright - 0.5f) * row[CONTRAST], 0.0f, most);
}

/* The value of a plane between four pixels. */
static float sampled(global const float* plane, const float x, const float y, const int height, const int width) {
  const int left = (int)x, upper = (int)y, right = min(left + 1, width - 1), lower = min(upper + 1, height - 1);
  const float a = x - left, b = y - upper;
  return (1 - a) * (1 - b) * plane[upper * width + left] + a * b * plane[lower * width + right] + (1 - a) * b * plane[lower * width + left] +
         a * (1 - b) * plane[upper * width + right];
}

kernel void augment(OPERAND(const uint, step), OPERAND(const float, x), OPERAND(const float, table), EIGEN_OPERANDS OPERAND(float, y), const uint key0,
                    const uint key1, const int piece, const int channels, const int height, const int width, const int rows, const int columns,
                    const float most) {
  const int n = get_global_id(1), points = rows * columns, first = get_global_id(0) * piece, last = min(first + piece, points);
  LOCATE(step);
  LOCATE(x);
  LOCATE(table);
  LOCATE(y);
#if EIGEN
  LOCATE(vectors);
  LOCATE(space);
#endif
  x += n * x_stride;
  y += n * y_stride;
  global const float* row = table + n * table_stride;
  const uint sample = n * (step[STEP_OTHER_RANKS] + 1) + step[STEP_SAMPLE];
  for (int p = first; p < last; p++) {
    const int i = p % columns, j = p / columns;
    /* the fork keeps a pixel to the right and below by this margin */
    const float at_x = fmax(0.0f, fmin(AT_X(row + MAP, (float)i, (float)j), width - 1.05f));
    const float at_y = fmax(0.0f, fmin(AT_Y(row + MAP, (float)i, (float)j), height - 1.05f));
    if (channels != 3) {
      for (int c = 0; c < channels; c++) y[(long)c * points + p] = sampled(x + (long)c * height * width, at_x, at_y, height, width);
      continue;
    }
    float3 rgb = (float3)(sampled(x, at_x, at_y, height, width), sampled(x + height * width, at_x, at_y, height, width),
                          sampled(x + 2 * height * width, at_x, at_y, height, width));
#if EIGEN
    if (row[NEEDS_EIGEN] != 0) rgb = along_eigenvectors(rgb, row, vectors, space, most);
#endif
    if (row[NEEDS_COLOR] != 0) rgb = recolored(rgb, row, most);
    if (row[NEEDS_EFFECT] != 0) {
      const int shadow = (i - columns / 2) * row[SHADOW_X] + (j - rows / 2) * row[SHADOW_Y] - row[SHADOW_DISTANCE] > 0;
      rgb = clamp(shadow ? rgb - row[SHADOW_STRENGTH] : rgb, 0.0f, most);
      if (row[NOISE] > 0) {
        const uint4 words = philox((uint4)(p, sample, step[STEP_ITERATION], step[STEP_PASS]), (uint2)(key0, key1));
        rgb += row[NOISE] * (float3)(normals(words.xy), normals(words.zw).x);
      }
    }
    y[p] = rgb.x;
    y[points + p] = rgb.y;
    y[2 * points + p] = rgb.z;
  }
}

kernel void move(OPERAND(const float, x), OPERAND(const float, before), OPERAND(const float, after), OPERAND(float, y), const int piece, const int height,
                 const int width, const int rows, const int columns) {
  const int n = get_global_id(1), points = rows * columns, first = get_global_id(0) * piece, last = min(first + piece, points);
  LOCATE(x);
  LOCATE(before);
  LOCATE(after);
  LOCATE(y);
  x += n * x_stride;
  y += n * y_stride;
  global const float *a = before + n * before_stride + MAP, *b = after + n * after_stride + MAP;
  const float whole = b[0] * b[3] - b[1] * b[2];
  const float inverse[6] = {b[3] / whole, -b[1] / whole, -b[2] / whole, b[0] / whole, (b[2] * b[5] - b[3] * b[4]) / whole, (b[1] * b[4] - b[0] * b[5]) / whole};
  for (int p = first; p < last; p++) {
    const float i = p % columns, j = p / columns, at_x = AT_X(a, i, j), at_y = AT_Y(a, i, j);
    /* the nearest pixel; one outside of the image is that at its border */
    const int column = clamp((int)(at_x + 0.5f), 0, width - 1), line = clamp((int)(at_y + 0.5f), 0, height - 1), pixel = line * width + column;
    const float to_x = at_x + x[pixel], to_y = at_y + x[height * width + pixel];
    y[p] = AT_X(inverse, to_x, to_y) - i;
    y[points + p] = AT_Y(inverse, to_x, to_y) - j;
  }
}

kernel void choose(OPERAND(const uint, step), OPERAND(const float, rows), OPERAND(float, table), const uint key0, const uint key1, const int height,
                   const int width) {
  const int n = get_global_id(0);
  LOCATE(step);
  LOCATE(rows);
  LOCATE(table);
  table += n * table_stride;
  const uint sample = n * (step[STEP_OTHER_RANKS] + 1) + step[STEP_SAMPLE];
  uint4 words[3];
  for (uint i = 0; i < 3; i++) words[i] = philox((uint4)(i, sample, step[STEP_ITERATION], step[STEP_PASS]), (uint2)(key0, key1));
  const float border = drawn(rows + ROW, words[1], 1, 0);
  const int side = (int)(3 * uniform01(words[2].x)); /* left and right, above and below, all */
  table[0] = drawn(rows, words[0], 1, 1);
  table[1] = side == 0 ? 0.0f : trunc(border * height);
  table[2] = side == 1 ? 0.0f : trunc(border * width);
}

kernel void blacken(OPERAND(const float, x), OPERAND(const float, table), BLACK_OPERAND OPERAND(float, y), const int piece, const int count,
                    const int height, const int width) {
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count);
  LOCATE(x);
  LOCATE(table);
  LOCATE(y);
  x += n * x_stride;
  y += n * y_stride;
  global const float* row = table + n * table_stride;
  const int lines = (int)row[1], sides = (int)row[2];
  for (int e = first; e < last; e++) {
    const int i = e % width, j = e / width % height;
    const int inside = i >= sides && i < width - sides && j >= lines && j < height - lines;
#if BLACK
    y[e] = row[0] != 0 ? black[black_offset + n * black_stride + e] : inside ? x[e] : 0;
#else
    y[e] = row[0] == 0 && inside ? x[e] : 0;
#endif
  }
}
