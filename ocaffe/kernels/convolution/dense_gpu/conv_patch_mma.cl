/* Convolution of planes with windows of several pixels and stride 1, in bfloat16 on NVIDIA's tensor cores. A patch is a rectangle of pixels
   and the pixels that their windows reach. A work-group loads the patch of a block of channels to local memory once. The products of all
   taps read it there, each at an offset that depends on the tap.

   pack             packed[group][block][tap][row][BK]: the filters in bfloat16, the depth in blocks of BK, the last one padded with zeros.
                    Rows are outputs and the depth channels. With `back` it is the reverse, and taps are mirrored, so that backward_data is
                    forward with other sizes
   forward          y[output][pixel]   = sum over (block, tap, channel) of packed * x
   backward_data    dx[channel][pixel] = sum over (block, tap, output) of packed * dy
   backward_filter  dw[output][channel, tap] = sum over (sample, pixel) of dy * x
   split_sum        the second pass of backward_filter if the pixels were split (split_sum.h)

   Defines: the tile, REGISTERS, STAGES (tile_gpu.h, tile_async.h); PLANES_OF_FOURS (conv_store.h); the window (conv_window.h), whose
   STRIDE_, DILATION_ and KERNEL_D are 1.
   DIRECTION  the kernel that the program has besides pack and split_sum: 0 forward, 1 backward_data, 2 backward_filter
   TILE_H, TILE_W  the rectangle of pixels of one sample: the tile of forward and backward_data, a step of backward_filter. TILE_W is a
              multiple of 4 or the whole width
   STEP_TAPS  taps in one step of forward and backward_data, a divisor of their number
   RAGGED     1: the planes of a patch (channels; in backward_data outputs) are not a multiple of the block, BK or in backward_filter LINE
   WIDE       backward_filter: elements of dy that are fetched together, 8, 4, 2 or 1. Rows of pixels (with the whole width: groups of rows)
              begin at multiples of WIDE in memory. Several are copied. Single ones go through registers, because a copy has at least 4
              bytes. So do all if dy is a view of a Concat that begins elsewhere

   Arguments: operands, SIZES (conv_window.h), for backward_filter rectangles of a split, scalars.

   forward, backward_data: the columns of the tile are the rectangle's pixels, row by row; BN - TILE_H * TILE_W of them do not exist. Group
   (x, y, z): rectangles of all samples, tiles of rows, groups of channels. Step s multiplies the STEP_TAPS taps that begin at s * STEP_TAPS. Meanwhile
   STAGES - 1 steps of filters are in flight, and the patch of the next block is fetched piece by piece. A piece is 8 channels of a pixel;
   a work-item loads it, neighbours load those of neighbouring pixels, and stores it as one chunk.

   A pixel's channels are a line of tile_async.h's layout `along`, so a tap is an offset in lines. Eight neighbouring pixels are in different
   banks wherever they begin. If the eight columns of a product are of two rows (TILE_W is not a multiple of 8), up to four of them have
   bank conflicts.

   backward_filter: BN = TAPS * LINE. A group computes BM outputs x LINE channels x all taps. Group (x, y, z): channels, outputs, groups of
   channels and splits of all rectangles. A step sums a rectangle, BK pixels of which BK - TILE_H * TILE_W do not exist, in parts of 32.
   Meanwhile the patch of the next rectangle and all parts of its dy are in flight, so STAGES is BK / 32 + 1. A warp has WM outputs and 8
   channels: for each tap TM / 2 products of 16 x 8. Pixels that do not exist read a line of zeros behind the patches, since 0 * Inf
   would be NaN. */
#include "common.h"
#include "conv_window.h"
#include "split_sum.h"
#ifndef DIRECTION
#define DIRECTION 0
#endif
#ifndef TILE_W
#define TILE_H 8
#define TILE_W 16
#endif
#include "tile_async.h"
#if DIRECTION < 2
#include "conv_store.h"
#endif

#ifndef STEP_TAPS
#define STEP_TAPS 1
#endif
#ifndef RAGGED
#define RAGGED 1
#endif
#ifndef WIDE
#define WIDE 1
#endif

#define PIXELS (TILE_H * TILE_W)
#define PATCH_H (TILE_H + KERNEL_H - 1)
#define PATCH_W (TILE_W + KERNEL_W - 1)
#define PATCH (PATCH_H * PATCH_W) /* pixels */
/* The number of pixels from one row of a patch to the next in local memory. If it is a multiple of 8, along_place swizzles lines of
   successive rows alike. */
#if DIRECTION < 2
#define PITCH PATCH_W
#else
#define PITCH ((PATCH_W + 7) / 8 * 8)
#endif
#define PATCH_LINES (PATCH_H * PITCH)
#if DIRECTION < 2
#define LINE BK /* channels of a pixel in local memory */
#else
#define LINE (BN / TAPS)
#endif
#define PATCH_CHUNKS (ALONG_CHUNKS(PATCH, LINE))
#define PIECES ((PATCH_CHUNKS + NT - 1) / NT) /* chunks of a patch that a work-item loads */

/* patch_pixel: the line in the patch of a pixel's first tap. patch_shift: the distance from there to another tap. */
INLINE int patch_pixel(int pixel) { return pixel / TILE_W * PITCH + pixel % TILE_W; }
INLINE int patch_shift(int tap) { return tap / KERNEL_W * PITCH + tap % KERNEL_W; }

/* Return 8 elements as one chunk. */
INLINE uint4 chunk_of_bfloat(const bfloat v[CHUNK]) {
  return (uint4)((uint)v[0] | (uint)v[1] << 16, (uint)v[2] | (uint)v[3] << 16, (uint)v[4] | (uint)v[5] << 16, (uint)v[6] | (uint)v[7] << 16);
}
INLINE uint4 chunk_of_float(const float v[CHUNK]) { return narrow8((float8)(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7])); }

/* The image that a patch is fetched from: its first channel, the pixels of a plane, rows and columns. */
typedef struct { global const SOURCE_T* from; int plane, h, w; } Image;

/* 8 channels of a pixel, loaded but not stored yet; `exists` is a mask that clears them. */
typedef struct { SOURCE_T v[CHUNK]; uint exists; } Piece;

/* Return chunk number `piece` of this work-item, packed: row and column of its pixel (9 bits each), its place in local memory (11 bits),
   its number among the pixel's chunks (2 bits), and whether it exists. Packing reduces about 30 instructions between the products to 10 or
   11. Both sides of a patch are less than 512. Work-items past the end repeat the last one's work, except in backward_filter, where they do
   nothing: there a condition costs less than the 8 loads, elsewhere it costs more. */
#define SKIPS (DIRECTION == 2)
INLINE uint place_piece(int piece) {
  const uint own = piece * NT + (int)get_local_id(0), number = min(own, (uint)(PATCH_CHUNKS - 1)), pixel = number % PATCH, chunk = number / PATCH; /* unsigned divisions take fewer instructions */
  const uint y = pixel / PATCH_W, x = pixel % PATCH_W;
  return y | x << 9 | (uint)along_place(LINE, y * PITCH + x, chunk) << 18 | chunk << 29 | (uint)(!SKIPS || own < PATCH_CHUNKS) << 31;
}
/* Select piece number `piece`, without an address; past the end the last one. */
INLINE uint piece_of(const uint where[PIECES], int piece) {
  uint own = where[0];
#pragma unroll
  for (int i = 1; i < PIECES; ++i) own = piece >= i ? where[i] : own;
  return own;
}
#define PIECE_Y(where) ((int)((where) & 511))
#define PIECE_X(where) ((int)((where) >> 9 & 511))
#define PIECE_PLACE(where) ((where) >> 18 & 2047)
#define PIECE_CHANNEL(where) ((int)((where) >> 29 & 3) * CHUNK)
#define PIECE_EXISTS(where) ((where) >> 31 != 0)

/* Load a piece of the patch that begins at row y, column x: channels from `channel` on, of which `channels` exist; the others are zero.
   Where a branch costs more than the loads, pixels outside of the image are loaded from the first pixel and cleared later. */
INLINE Piece fetch_piece(uint where, const Image image, int y, int x, int channel, int channels) {
  const int first = channel + PIECE_CHANNEL(where), at_y = y + PIECE_Y(where), at_x = x + PIECE_X(where);
  const int inside = (uint)at_y < (uint)image.h & (uint)at_x < (uint)image.w & PIECE_EXISTS(where);
  global const SOURCE_T* p = image.from + (SKIPS || inside ? first * image.plane + at_y * image.w + at_x : 0);
  Piece result;
  result.exists = SKIPS || inside ? ~0u : 0u;
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) result.v[e] = 0;
  if (!(SKIPS || RAGGED) || inside) {
#pragma unroll
    for (int e = 0; e < CHUNK; ++e)
      if (!RAGGED || first + e < channels) result.v[e] = p[(ulong)e * image.plane];
  }
  return result;
}

INLINE void store_piece(local uint4* patch, const Piece given, uint where) {
  if (PIECE_EXISTS(where)) patch[PIECE_PLACE(where)] = JOINED(chunk_of_, SOURCE_T)(given.v) & given.exists;
}

/* Load the first patch with all loads in flight at once, since no sums occupy the registers yet. */
INLINE void whole_patch(local uint4* patch, const uint where[PIECES], const Image image, int y, int x, int channel, int channels) {
  Piece pieces[PIECES];
#pragma unroll
  for (int piece = 0; piece < PIECES; ++piece) pieces[piece] = fetch_piece(where[piece], image, y, x, channel, channels);
#pragma unroll
  for (int piece = 0; piece < PIECES; ++piece) store_piece(patch, pieces[piece], where[piece]);
}

/* One chunk per work-item. `tap` is the fastest index, because the taps of a filter are neighbours in memory. */
kernel void pack(OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(float, packed), int rows, int depth, int back, int count) {
  const int i = get_global_id(0);
  if (i >= count) return;
  const int blocks = (depth + LINE - 1) / LINE, chunks = blocks * (LINE / CHUNK);
  const int tap = i % TAPS, row = back ? i / TAPS % rows : i / TAPS / chunks % rows, chunk = back ? i / TAPS / rows % chunks : i / TAPS % chunks;
  const int group = i / TAPS / rows / chunks;
  const ulong row_stride = back ? TAPS : (ulong)depth * TAPS, depth_stride = back ? (ulong)rows * TAPS : TAPS;
  filter += filter_offset + (ulong)group * rows * depth * TAPS + row * row_stride + (back ? TAPS - 1 - tap : tap);
  float v[CHUNK];
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) v[e] = chunk * CHUNK + e < depth ? filter[(chunk * CHUNK + e) * depth_stride] : 0.0f;
  const int block = chunk / (LINE / CHUNK), part = chunk % (LINE / CHUNK);
  ((global uint4*)(packed + packed_offset))[(((ulong)group * blocks + block) * TAPS + tap) * rows * (LINE / CHUNK) + row * (LINE / CHUNK) + part] = chunk_of_float(v);
}

#if DIRECTION < 2
#define A_CHUNKS (ALONG_CHUNKS(BM, BK)) /* of one tap */
#define STAGE_CHUNKS (STEP_TAPS * A_CHUNKS)
#define BLOCK_STEPS (TAPS / STEP_TAPS)
#define STEP_PIECES ((PIECES + BLOCK_STEPS - 1) / BLOCK_STEPS)

/* acc += a * patch for one tap, whose pixels are `shift` lines further. */
#ifdef __NVPTX__
/* `pixels`: of every 16 columns the one whose matrix row this lane addresses. */
INLINE void tap_multiply(local const uint4* a, local const uint4* patch, int shift, const int pixels[TN / 4], float acc[TM][TN]) {
  const int item = get_local_id(0), lane = item % 32, row = item / 32 / (BN / WN) * WM;
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    uint4 av[TM / 2];
#pragma unroll
    for (int i = 0; i < TM / 2; ++i) av[i] = load_matrices(a + along_place(BK, row + i * 16 + lane % 16, k / CHUNK + lane / 16));
#pragma unroll
    for (int j = 0; j < TN; j += 4)
      columns_multiply(av, load_matrices(patch + along_place(BK, pixels[j / 4] + shift, k / CHUNK + lane / 8 % 2)), j, acc);
  }
}
#else
static __attribute__((noinline)) void tap_multiply(local const uint4* a, local const uint4* patch, int shift, const int pixels[TN / 4], float acc[TM][TN]) {
  const int row = tile_row(get_local_id(0)), column = tile_column(get_local_id(0));
#pragma unroll 1
  for (int k = 0; k < BK; ++k)
#pragma unroll 1
    for (int i = 0; i < TM; ++i) {
      const float v = element_at(a, along_place(BK, row + ROW(i), k / CHUNK), k % CHUNK);
#pragma unroll 1
      for (int j = 0; j < TN; ++j) {
        const int pixel = patch_pixel(min(column + COLUMN(j), PIXELS - 1)) + shift;
        acc[i][j] += v * element_at(patch, along_place(BK, pixel, k / CHUNK), k % CHUNK);
      }
    }
}
#endif

/* Fetch the filters of one step; `from` points at this group's first row. Rows past the end fetch the last one and are not stored. */
INLINE void fetch_filters(local uint4* to, global const bfloat* from, int rows, int last) {
  const int line = (int)get_local_id(0) / (BK / CHUNK), part = (int)get_local_id(0) % (BK / CHUNK);
  to += along_place(BK, line, part), from += part * CHUNK;
#pragma unroll
  for (int i = 0; i < (STAGE_CHUNKS + NT - 1) / NT; ++i) {
    const int line_of = line + i * (NT * CHUNK / BK); /* over all taps; the lines of a work-item are a multiple of 8 apart, so their places are i * NT apart */
    if (STAGE_CHUNKS % NT == 0 || line_of < STEP_TAPS * BM) copy_8(to + i * NT, from + (line_of / BM * rows + min(line_of % BM, last)) * BK, 1);
  }
}

/* Compute the rectangle of target[th][tw] of this group. Its patch begins `before_h`, `before_w` pixels before it in the source of sh x sw. */
INLINE void gather(local uint4* as, local uint4* patches, global const SOURCE_T* source, ulong source_stride, global const float* packed, global const float* bias,
                   ulong bias_stride, global RESULT_T* target, ulong target_stride, int target_aligned, int groups, int rows, int depth, int sh, int sw, int th, int tw,
                   int before_h, int before_w, int has_bias, int accumulate, float slope, global const SIGNS_T* sign, ulong sign_stride, int sign_aligned,
                   const ChannelReduction reduction) {
  const int item = get_local_id(0), lane = item % 32, group = get_group_id(2), row0 = get_group_id(1) * BM;
  const Rectangle f = rectangle_of(get_group_id(0), th, tw);
  const int y = f.y - before_h, x = f.x - before_w;
  const int blocks = (depth + BK - 1) / BK, steps = blocks * BLOCK_STEPS;
  const Image image = {source + f.sample * source_stride + (ulong)group * depth * (sh * sw), sh * sw, sh, sw};
  global const bfloat* filters = (global const bfloat*)packed + ((ulong)group * blocks * TAPS * rows + row0) * BK;

  int pixels[TN / 4];
#pragma unroll
  for (int j = 0; j < TN; j += 4)
    pixels[j / 4] = patch_pixel(min(item / 32 % (BN / WN) * WN + j * 4 + lane % 8 + lane / 16 * 8, PIXELS - 1));
#pragma unroll
  for (int t = 0; t < STAGES - 1; ++t) {
    if (t < steps) fetch_filters(as + t * STAGE_CHUNKS, filters + (ulong)t * STEP_TAPS * rows * BK, rows, rows - 1 - row0);
    copies_commit();
  }
  uint where[PIECES];
#pragma unroll
  for (int piece = 0; piece < PIECES; ++piece) where[piece] = place_piece(piece);
  whole_patch(patches, where, image, y, x, 0, depth);
  float acc[TM][TN];
  tile_clear(acc);
  Piece pieces[STEP_PIECES];
  int left = steps - (STAGES - 1), stage = 0; /* steps that are not in flight yet */
  filters += (ulong)(STAGES - 1) * STEP_TAPS * rows * BK;
  for (int block = 0; block < blocks; ++block) {
    local const uint4* patch = patches + block % 2 * PATCH_CHUNKS;
    local uint4* other = patches + (block + 1) % 2 * PATCH_CHUNKS;
#pragma unroll 1
    for (int t = 0; t < BLOCK_STEPS; ++t) {
      copies_wait();
      barrier(CLK_LOCAL_MEM_FENCE);
      if (left-- > 0) fetch_filters(as + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE_CHUNKS, filters, rows, rows - 1 - row0);
      copies_commit();
      const int fetches = block + 1 < blocks && t * STEP_PIECES < PIECES;
      if (fetches) {
#pragma unroll
        for (int p = 0; p < STEP_PIECES; ++p)
          pieces[p] = fetch_piece(piece_of(where, t * STEP_PIECES + p), image, y, x, (block + 1) * BK, depth);
      }
#pragma unroll
      for (int tap = 0; tap < STEP_TAPS; ++tap) tap_multiply(as + stage * STAGE_CHUNKS + tap * A_CHUNKS, patch, patch_shift(t * STEP_TAPS + tap), pixels, acc);
      if (fetches) {
#pragma unroll
        for (int p = 0; p < STEP_PIECES; ++p) store_piece(other, pieces[p], piece_of(where, t * STEP_PIECES + p));
      }
      filters += (ulong)STEP_TAPS * rows * BK;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
  }
#ifdef CHANNEL_REDUCTION
  barrier(CLK_LOCAL_MEM_FENCE); /* the reductions reuse the filters' local memory */
#endif
  tile_deal(acc);
  store_positions(acc, f, target, target_stride, target_aligned, groups, group, row0, rows, 0, 1, th, tw, bias, bias_stride, has_bias, accumulate, slope, sign, sign_stride,
                  sign_aligned, (local float*)as, reduction, 0);
}

#if DIRECTION == 0
kernel GROUP_OF_NT void forward(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const float, packed), REDUCTION_OPERANDS OPERAND_RESTRICT(const float, bias),
                                OPERAND_RESTRICT(RESULT_T, y), SIZES, int has_bias, int accumulate, float slope) {
  LOCAL_CHUNKS(as, STAGES * STAGE_CHUNKS);
  LOCAL_CHUNKS(patches, 2 * PATCH_CHUNKS);
  gather(as, patches, x + x_offset, x_stride, packed + packed_offset, bias + bias_offset, bias_stride, y + y_offset, y_stride, (y_offset & 3) == 0, groups, outputs,
         channels, h, w, oh, ow, PAD_H, PAD_W, has_bias, accumulate, slope, NO_SIGN(y), 0, 1, REDUCTION_ARGUMENT);
}
#else
kernel GROUP_OF_NT void backward_data(OPERAND_RESTRICT(const SOURCE_T, dy), OPERAND_RESTRICT(const float, packed), REDUCTION_OPERANDS SIGN OPERAND_RESTRICT(const float, bias),
                                      OPERAND_RESTRICT(RESULT_T, dx), SIZES, int has_bias, int accumulate, float slope) {
  LOCAL_CHUNKS(as, STAGES * STAGE_CHUNKS);
  LOCAL_CHUNKS(patches, 2 * PATCH_CHUNKS);
  gather(as, patches, dy + dy_offset, dy_stride, packed + packed_offset, bias + bias_offset, bias_stride, dx + dx_offset, dx_stride, (dx_offset & 3) == 0, groups, channels,
         outputs, oh, ow, h, w, KERNEL_H - 1 - PAD_H, KERNEL_W - 1 - PAD_W, has_bias, accumulate, slope, IF_FUSED_RELU(sign + sign_offset, dx), IF_FUSED_RELU(sign_stride, 0),
         SIGN_ALIGNED, REDUCTION_ARGUMENT);
}
#endif

#else
#define PART 32 /* pixels that a product of four matrices takes; also the pixels of a line of dy in local memory */
#define PARTS_OF_STEP (BK / PART)
#define PART_PIECES ((PIECES + PARTS_OF_STEP - 1) / PARTS_OF_STEP)
#define A_CHUNKS (ALONG_CHUNKS(BM, PART))
/* The line of zeros behind both patches, relative to a patch. There is one at this line and one each PITCH, 2 PITCH, ... lines further,
   for each row of taps. */
#define ZEROS(patch) ((2 - (patch)) * PATCH_LINES)
#define B_CHUNKS (ALONG_CHUNKS(ZEROS(0) + (KERNEL_H - 1) * PITCH + 1, LINE))
#define OUTPUT_TILES (TM / 2) /* 16-row products per warp */

/* The sample and the first row and column of a rectangle. */
typedef struct { int sample, y, x; } Corner;

INLINE Corner corner_of(int rectangle, int oh, int ow) {
  const int across = (ow + TILE_W - 1) / TILE_W, each = (oh + TILE_H - 1) / TILE_H * across, own = rectangle % each;
  return (Corner){rectangle / each, own / across * TILE_H, own % across * TILE_W};
}

INLINE Corner corner_after(Corner c, int oh, int ow) {
  c.x += TILE_W;
  if (c.x >= ow) c.x = 0, c.y += TILE_H;
  if (c.y >= oh) c.y = 0, ++c.sample;
  return c;
}

INLINE int pixel_exists(int pixel, const Corner c, int oh, int ow) { return pixel < PIXELS && c.y + pixel / TILE_W < oh && c.x + pixel % TILE_W < ow; }

/* A work-item fetches dy of the same WIDE pixels of every LINES_APART-th output: GIVEN times WIDE elements of a part. Neighbours fetch
   neighbouring pixels. */
#define RUNS (PART / WIDE) /* of a line */
#define LINES_APART (NT / RUNS)
#define GIVEN (BM / LINES_APART)

/* A work-item's share of a part: its first element, the distance to those of the next output, and how many outputs exist, 0 if the pixels
   do not. Pixels that continue in the next row all exist if the first one does. */
typedef struct { global const GIVEN_T* from; int apart, lines; } Share;

/* `dy` points at the group's first output in the sample, `last` is its last one. `first` is the first pixel of the part. */
INLINE Share share_of(global const GIVEN_T* dy, int first, const Corner c, int oh, int ow, int last) {
  const int line = (int)get_local_id(0) / RUNS, pixel = first + (int)get_local_id(0) % RUNS * WIDE;
  return (Share){dy + line * (oh * ow) + (c.y + pixel / TILE_W) * ow + c.x + pixel % TILE_W, LINES_APART * oh * ow,
                 pixel_exists(pixel, c, oh, ow) ? (last - line + LINES_APART) / LINES_APART : 0};
}
/* The place in local memory of output number `i` of a share. */
INLINE local bfloat* given_place(local uint4* to, int i) {
  const int line = (int)get_local_id(0) / RUNS + i * LINES_APART, pixel = (int)get_local_id(0) % RUNS * WIDE;
  return (local bfloat*)(to + along_place(PART, line, pixel / CHUNK)) + pixel % CHUNK;
}

/* Copy WIDE neighbours in memory to a part of a chunk. */
INLINE void copy_bfloat(local bfloat* to, global const bfloat* from, int exist) {
#if WIDE == 8
  copy_8((local uint4*)to, from, exist);
#elif WIDE == 4
  copy_4((local uint2*)to, from, exist);
#elif WIDE == 2
  copy_2((local uint*)to, from, exist);
#endif
}
INLINE void copy_float(local bfloat* to, global const float* from, int exist) {
#pragma unroll
  for (int e = 0; e < WIDE; e += 2) ((local uint*)to)[e / 2] = exist ? narrow2((float2)(from[e], from[e + 1])) : 0u;
}
INLINE bfloat rounded_bfloat(bfloat v) { return v; }
INLINE bfloat rounded_float(float v) { return narrow(v); }

/* Copy a share to local memory. What does not exist becomes zero. */
INLINE void copy_given(local uint4* to, const Share share, int aligned) {
  if (aligned) {
#pragma unroll
    for (int i = 0; i < GIVEN; ++i) JOINED(copy_, GIVEN_T)(given_place(to, i), share.from + i * share.apart, i < share.lines);
    return;
  }
  /* The loop stays rolled: unrolling would take registers from the products. */
#pragma unroll 1
  for (int i = 0; i < GIVEN; ++i)
#pragma unroll
    for (int e = 0; e < WIDE; ++e) given_place(to, i)[e] = i < share.lines ? JOINED(rounded_, GIVEN_T)(share.from[i * share.apart + e]) : 0;
}

/* The same through registers, in two steps. */
INLINE void load_given(GIVEN_T v[GIVEN], const Share share) {
#pragma unroll
  for (int i = 0; i < GIVEN; ++i) v[i] = 0;
#pragma unroll
  for (int i = 0; i < GIVEN; ++i)
    if (i < share.lines) v[i] = share.from[i * share.apart];
}
INLINE void store_given(local uint4* to, const GIVEN_T v[GIVEN]) {
#pragma unroll
  for (int i = 0; i < GIVEN; ++i) *given_place(to, i) = JOINED(rounded_, GIVEN_T)(v[i]);
}

/* acc[i][tap] += the products of PART pixels from `first` on, for outputs from 16 * i on and the warp's 8 channels. The four sums are row g,
   columns 2 q and 2 q + 1, then row g + 8. `zeros`: the first line of zeros. */
#ifdef __NVPTX__
INLINE void part_multiply(local const uint4* a, local const uint4* patch, int zeros, int first, const Corner c, int oh, int ow, float acc[OUTPUT_TILES][TAPS][4]) {
  const int item = get_local_id(0), lane = item % 32, row = item / 32 / (BN / WN) * WM, chunk = item / 32 % (BN / WN);
  const int exists = pixel_exists(first + lane, c, oh, ow), pixel = patch_pixel(first + lane);
  int place[KERNEL_W];
#pragma unroll
  for (int x = 0; x < KERNEL_W; ++x) place[x] = along_place(LINE, exists ? pixel + x : zeros, chunk);
  uint4 av[OUTPUT_TILES][2];
#pragma unroll
  for (int i = 0; i < OUTPUT_TILES; ++i)
#pragma unroll
    for (int half_part = 0; half_part < 2; ++half_part)
      av[i][half_part] = load_matrices(a + along_place(PART, row + i * 16 + lane % 16, half_part * 2 + lane / 16));
#pragma unroll
  for (int tap = 0; tap < TAPS; ++tap) {
    const uint4 bv = load_transposed(patch + (place[tap % KERNEL_W] + tap / KERNEL_W * ALONG_CHUNKS(PITCH, LINE)));
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; ++i) {
      mma_16(acc[i][tap], av[i][0], bv.x, bv.y);
      mma_16(acc[i][tap], av[i][1], bv.z, bv.w);
    }
  }
}
#else
static __attribute__((noinline)) void part_multiply(local const uint4* a, local const uint4* patch, int zeros, int first, const Corner c, int oh, int ow, float acc[OUTPUT_TILES][TAPS][4]) {
  const int item = get_local_id(0), lane = item % 32, row = item / 32 / (BN / WN) * WM + lane / 4, chunk = item / 32 % (BN / WN);
#pragma unroll 1
  for (int p = first; p < first + PART; ++p)
#pragma unroll 1
    for (int tap = 0; tap < TAPS; ++tap) {
      const int place = along_place(LINE, pixel_exists(p, c, oh, ow) ? patch_pixel(p) + patch_shift(tap) : zeros + tap / KERNEL_W * PITCH, chunk);
#pragma unroll 1
      for (int i = 0; i < OUTPUT_TILES; ++i)
#pragma unroll 1
        for (int e = 0; e < 4; ++e)
          acc[i][tap][e] += element_at(a, along_place(PART, row + i * 16 + e / 2 * 8, p % PART / CHUNK), p % CHUNK) * element_at(patch, place, lane % 4 * 2 + e % 2);
    }
}
#endif

kernel GROUP_OF_NT void backward_filter(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const GIVEN_T, dy), OPERAND_RESTRICT(RESULT_T, dw), SIZES,
                                        int split_rectangles, int accumulate) {
  LOCAL_CHUNKS(as, STAGES * A_CHUNKS);
  LOCAL_CHUNKS(patches, B_CHUNKS);
  const int item = get_local_id(0), lane = item % 32, group = get_group_id(2) % groups, split = get_group_id(2) / groups;
  const int row0 = get_group_id(1) * BM, channel0 = get_group_id(0) * LINE;
  const int all = batch * ((oh + TILE_H - 1) / TILE_H) * ((ow + TILE_W - 1) / TILE_W);
  const int begin = split * split_rectangles, end = min(all, begin + split_rectangles);
  const int last = outputs - 1 - row0;
  const int aligned = ((dy_offset | dy_stride) & (WIDE - 1)) == 0; /* whether samples are aligned; planes always are */
  x += x_offset + (ulong)group * channels * (h * w);
  dy += dy_offset + ((ulong)group * outputs + row0) * (oh * ow);
  for (int i = item; i < KERNEL_H * (LINE / CHUNK); i += NT)
    patches[along_place(LINE, ZEROS(0) + i / (LINE / CHUNK) * PITCH, i % (LINE / CHUNK))] = (uint4)(0);

  uint where[PIECES];
#pragma unroll
  for (int piece = 0; piece < PIECES; ++piece) where[piece] = place_piece(piece);
  Corner now = corner_of(begin, oh, ow);
  GIVEN_T given[GIVEN];
#pragma unroll
  for (int part = 0; part < PARTS_OF_STEP; ++part) {
    if (begin < end) {
      const Share share = share_of(dy + now.sample * dy_stride, part * PART, now, oh, ow, last);
      if (WIDE > 1) copy_given(as + part * A_CHUNKS, share, aligned);
      if (WIDE == 1) load_given(given, share), store_given(as + part * A_CHUNKS, given);
    }
    copies_commit();
  }
  if (begin < end) {
    const Image image = {x + now.sample * x_stride, h * w, h, w};
    whole_patch(patches, where, image, now.y - PAD_H, now.x - PAD_W, channel0, channels);
  }

  float acc[OUTPUT_TILES][TAPS][4];
#pragma unroll
  for (int i = 0; i < OUTPUT_TILES; ++i)
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[i][tap][e] = 0.0f;
  Piece pieces[PART_PIECES];
  int stage = 0;
  for (int t = begin; t < end; ++t) {
    const int own = (t - begin) % 2, fetches = t + 1 < end;
    const Corner next = corner_after(now, oh, ow);
    const Image image = {x + next.sample * x_stride, h * w, h, w};
#pragma unroll 1
    for (int part = 0; part < PARTS_OF_STEP; ++part) {
      copies_wait();
      barrier(CLK_LOCAL_MEM_FENCE);
      local uint4* later = as + (stage == 0 ? STAGES - 1 : stage - 1) * A_CHUNKS; /* which no work-item reads any more */
      if (fetches) {
        const Share share = share_of(dy + next.sample * dy_stride, part * PART, next, oh, ow, last);
        if (WIDE > 1) copy_given(later, share, aligned);
        if (WIDE == 1) load_given(given, share);
#pragma unroll
        for (int p = 0; p < PART_PIECES; ++p)
          pieces[p] = fetch_piece(piece_of(where, part * PART_PIECES + p), image, next.y - PAD_H, next.x - PAD_W, channel0, channels);
      }
      copies_commit();
      part_multiply(as + stage * A_CHUNKS, patches + own * ALONG_CHUNKS(PATCH_LINES, LINE), ZEROS(own), part * PART, now, oh, ow, acc);
      if (fetches) {
        if (WIDE == 1) store_given(later, given);
#pragma unroll
        for (int p = 0; p < PART_PIECES; ++p)
          store_piece(patches + (1 - own) * ALONG_CHUNKS(PATCH_LINES, LINE), pieces[p], piece_of(where, part * PART_PIECES + p));
      }
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    now = next;
  }

  dw += dw_offset + split * dw_stride + (ulong)group * outputs * channels * TAPS;
  const int output = row0 + item / 32 / (BN / WN) * WM + lane / 4, channel = channel0 + item / 32 % (BN / WN) * CHUNK + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < OUTPUT_TILES; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int o = output + i * 16 + e / 2 * 8, c = channel + e % 2;
      if (o >= outputs || c >= channels) continue;
      global RESULT_T* to = dw + ((ulong)o * channels + c) * TAPS;
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) put(to + tap, acc[i][tap][e], accumulate, 1.0f, NO_SIGN(dw), 0);
    }
}
#endif
