/* The order of an attention mask: for each pixel p of an image, weights of the pixels around it, to and from a matrix of pixels x pixels.
 *
 * mask: N x (mask_height mask_width) x pixels; the weight of the pixel q that is (i - mask_height / 2, j - mask_width / 2) away from p is in channel
 * i mask_width + j at p. matrix: N x pixels x pixels, with q in rows and p in columns (COLLECT) or the reverse. Pixels that no mask covers have the weight 0.
 *
 * spread: the matrix; work-items (pieces of `piece` values of a sample of the matrix, samples).
 * take: the mask, with 0 for pixels outside the image; work-items (pieces of a sample of the mask, samples).
 */
#include "common.h"

#ifndef COLLECT
#define COLLECT 1
#endif

#define SIZES const int count, const int piece, const int height, const int width, const int mask_height, const int mask_width

kernel void ENTRY(spread)(OPERAND(const float, mask), OPERAND(float, matrix), SIZES) {
  LOCATE(mask);
  LOCATE(matrix);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count), pixels = height * width;
  for (int e = first; e < last; e++) {
    const int row = e / pixels, column = e % pixels, q = COLLECT ? row : column, p = COLLECT ? column : row;
    const int i = q / width - p / width + mask_height / 2, j = q % width - p % width + mask_width / 2;
    const int covered = i >= 0 && i < mask_height && j >= 0 && j < mask_width;
    matrix[n * matrix_stride + e] = covered ? mask[n * mask_stride + (long)(i * mask_width + j) * pixels + p] : 0;
  }
}

kernel void ENTRY(take)(OPERAND(const float, matrix), OPERAND(float, mask), SIZES, const int accumulate) {
  LOCATE(matrix);
  LOCATE(mask);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count), pixels = height * width;
  for (int e = first; e < last; e++) {
    const int k = e / pixels, p = e % pixels;
    const int r = p / width + k / mask_width - mask_height / 2, c = p % width + k % mask_width - mask_width / 2;
    const int q = r * width + c, inside = r >= 0 && r < height && c >= 0 && c < width;
    global float* to = mask + n * mask_stride + e;
    *to = (accumulate ? *to : 0) + (inside ? matrix[n * matrix_stride + (long)(COLLECT ? q : p) * pixels + (COLLECT ? p : q)] : 0);
  }
}
