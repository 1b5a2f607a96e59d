/* The images and filters with which a convolution over a few channels becomes one of stride 1 over blocks of 8 channels (conv_blocks.cl).

   A pixel of the image in blocks holds a cell: CELL_H x CELL_W pixels of x, each with CHANNELS channels, from row STRIDE_H y - PAD_H and column
   STRIDE_W x - PAD_W on. Zeros stand for pixels outside of x, so that the image needs no padding, and fill the last block. Channel d of the image is channel
   d % CHANNELS of pixel d / CHANNELS of the cell. The window has TAPS_H x TAPS_W cells. Taps that it has more than KERNEL_H x KERNEL_W have filters of 0.

   image        cells of x, N, blocks, rows, columns, 8. Work-items: columns, rows, samples
   pack         the filters in the order of conv_blocks_pack.cl. A work-item makes the 8 elements of one row in each step
   sum_parts    dw[output][channel][tap] = sum over (split) of the parts of backward_filter. Work-items: elements, SHARERS of each

   Defines: CHANNELS, KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PAD_H, PAD_W, CELL_H, CELL_W */
#include "block_operands.h"

#ifndef CHANNELS
#define CHANNELS 3
#define KERNEL_H 7
#define KERNEL_W 7
#define STRIDE_H 2
#define STRIDE_W 2
#define PAD_H 3
#define PAD_W 3
#define CELL_H 2
#define CELL_W 2
#endif

#define TAPS_H ((KERNEL_H + CELL_H - 1) / CELL_H)
#define TAPS_W ((KERNEL_W + CELL_W - 1) / CELL_W)
#define TAPS (TAPS_H * TAPS_W)
#define DEPTH (CHANNELS * CELL_H * CELL_W)
#define BLOCKS ((DEPTH + 7) / 8)
#define ELEMENTS 32
#define SHARERS 8
/* The pixel of channel d in a cell. */
#define CELL_Y(d) ((d) / (CHANNELS * CELL_W))
#define CELL_X(d) ((d) / CHANNELS % CELL_W)

kernel void image(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(BLOCK_T, cells), int h, int w, int rows, int columns) {
  const int column = get_global_id(0), row = get_global_id(1), sample = get_global_id(2);
  if (column >= columns || row >= rows) return;
  LOCATE(x), LOCATE(cells);
  x += sample * x_stride;
  cells += sample * cells_stride;
  const int top = row * STRIDE_H - PAD_H, left = column * STRIDE_W - PAD_W;
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    float each[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int d = block * 8 + e, py = top + CELL_Y(d), px = left + CELL_X(d), exists = d < DEPTH && py >= 0 && py < h && px >= 0 && px < w;
      each[e] = exists ? GET(SOURCE_T, x + ((ulong)(d % CHANNELS) * h + py) * w + px) : 0.0f;
    }
    SET8(BLOCK_T, cells + (((ulong)block * rows + row) * columns + column) * 8, (float8)(each[0], each[1], each[2], each[3], each[4], each[5], each[6], each[7]));
  }
}

kernel void pack(OPERAND_RESTRICT(const float, filters), OPERAND_RESTRICT(uint, packed), int rows, int nt, int cb, int count) {
  const int i = get_global_id(0);
  if (i >= count) return;
  LOCATE(filters), LOCATE(packed);
  const int blocks = (DEPTH + 15) / 16 * 16 / cb, parts = cb / 8, own = i % nt, part = i / nt % parts, above = i / (nt * parts);
  const int row = above / blocks * nt + row_of_column(own), d0 = above % blocks * cb + part * 8;
  for (int tap = 0; tap < TAPS; ++tap) {
    float each[8];
    for (int e = 0; e < 8; ++e) {
      const int d = d0 + e, y = tap / TAPS_W * CELL_H + CELL_Y(d), x = tap % TAPS_W * CELL_W + CELL_X(d);
      each[e] = row < rows && d < DEPTH && y < KERNEL_H && x < KERNEL_W ? filters[((row * CHANNELS + d % CHANNELS) * KERNEL_H + y) * KERNEL_W + x] : 0.0f;
    }
    const float8 v = (float8)(each[0], each[1], each[2], each[3], each[4], each[5], each[6], each[7]);
    put_filters(packed, (ulong)(above * TAPS + tap) * parts + part, nt, own, v);
  }
}

kernel __attribute__((reqd_work_group_size(ELEMENTS, SHARERS, 1))) void sum_parts(OPERAND_RESTRICT(const float, parts), OPERAND_RESTRICT(float, dw), int splits,
                                                                                  int outputs, int accumulate) {
  local float sums[SHARERS][ELEMENTS];
  const int i = get_global_id(0), element = get_local_id(0), sharer = get_local_id(1);
  const int x = i % KERNEL_W, y = i / KERNEL_W % KERNEL_H, channel = i / (KERNEL_H * KERNEL_W) % CHANNELS, output = i / (CHANNELS * KERNEL_H * KERNEL_W);
  const int d = (y % CELL_H * CELL_W + x % CELL_W) * CHANNELS + channel, tap = y / CELL_H * TAPS_W + x / CELL_W;
  LOCATE(parts), LOCATE(dw);
  float sum = 0.0f;
  if (output < outputs)
#pragma unroll 8
    for (int s = sharer; s < splits; s += SHARERS) sum += parts[s * parts_stride + (tap * outputs + output) * (BLOCKS * 8) + d];
  sums[sharer][element] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (sharer > 0 || output >= outputs) return;
  for (int s = 1; s < SHARERS; ++s) sum += sums[s][element];
  dw[i] = sum + (accumulate ? dw[i] : 0.0f);
}
