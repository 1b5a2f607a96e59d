/* Convolution on channels in blocks of 8, in bfloat16 or TF32 by wgmma (tile_wgmma.h). The stride is 1 and the padding smaller than the window, or the
   window is 3x3 with stride 2 and padding 1.

   forward          y[pixel][output]   = sum over (block, tap, channel) of x * packed
   backward_data    dx[pixel][channel] = sum over (block, tap, output) of dy * packed
   backward_filter  parts[split][tap][output][channel] = sum over (pixel of the split) of dy * x

   `packed`: the filters in the order of conv_blocks_pack.cl, in tiles of NT rows and blocks of CB of the depth.
   Images lie in memory as N, C / 8, H, W, 8 (Ref.blocked). All pixels of a batch are one sequence of virtual pixels.

   A stride of 2 divides x into four images, the phases: those of even and odd rows and columns. A tap belongs to one of them. forward copies a patch of each
   phase. A tile of backward_data belongs to one phase of dx, and has the taps of that phase.

   A convolution may have groups of channels: those of a group are whole blocks, and so are its outputs. A tile belongs to one group. The sizes `channels` and
   `outputs` are those of a group.

   Defines: KERNEL_H, KERNEL_W, PAD_H, PAD_W, STRIDE (2 only with 3x3), NT (tile_wgmma.h), CHANNEL_GROUPS
   DIRECTION  0 forward, 1 backward_data, 2 backward_filter; conv_blocks_sum.cl adds up its parts
   forward, backward_data: MB (a tile has 128 MB virtual pixels), CB and STEP_TAPS (channels and taps of a step), PATCHES and FILTERS (buffers of patches and
   filters), PATCH (virtual pixels of a patch: those of the tile, and those that their windows reach).
   The columns of the products are NT outputs. A work-group has several tiles: it copies operands of the next one while it writes results.
   backward_filter: STEP (virtual pixels that are copied at a time), STEPS (buffers), HALVES; in TF32 TEAM (work-items that copy a
   step), AHEAD (steps of a team whose copies are in flight), OTHERS_IN_FLIGHT (one less).
   The rows of the products are outputs, the columns NT channels. In TF32 the rows are channels and the columns NT outputs, because only the left operand can
   begin at any pixel. A work-group has the taps of TAP_ROWS rows of the window, 1 or all: the patch of a row has few pixels more than the step, and with one
   row sums of 128 columns fit the registers. With HALVES 1 each group of warps has other 64 rows. With 2 both have the same 64, and each has one half of the
   pixels of a step; their sums are two splits.

   The work-items that copy wait for buffers that the others have read.
   Work-groups of backward_filter: tiles of columns, tiles of rows times KERNEL_H / TAP_ROWS, splits of the virtual pixels times CHANNEL_GROUPS. */
#ifndef DIRECTION
#define DIRECTION 0
#endif
#ifndef KERNEL_W
#define KERNEL_H 3
#define KERNEL_W 3
#define PAD_H 1
#define PAD_W 1
#endif
#ifndef STRIDE
#define STRIDE 1
#endif
#ifndef CHANNEL_GROUPS
#define CHANNEL_GROUPS 1
#endif
#ifndef NT
#define NT 64
#define MB 1
#define CB 16
#define PATCH 256
#define PATCHES 1
#define FILTERS 1
#define STEP 64
#define STEPS 1
#endif
#ifndef WGMMA /* emulated copies wait for no buffer */
#undef PATCHES
#undef FILTERS
#undef STEPS
#define PATCHES 1
#define FILTERS 1
#define STEPS 1
#endif
#define TAPS (KERNEL_H * KERNEL_W)
#include "tile_wgmma.h"
#include "epilogue.h"
#include "fused_relu.h"
#include "channel_reduction.h"

#define SIZES int images, int channels, int outputs, int h, int w, int oh, int ow
/* Step i has the filters of tap TAP(i, back), as in conv_blocks_pack.cl. SHIFT is the distance of its pixel from the pixel of the result, in virtual pixels:
   from -BELOW to SPAN - BELOW. */
#if STRIDE == 1
#define PHASES 1
#define TAP(i, back) ((back) ? TAPS - 1 - (i) : (i))
#define BELOW_H (DIRECTION == 1 ? KERNEL_H - 1 - PAD_H : PAD_H)
#define BELOW_W (DIRECTION == 1 ? KERNEL_W - 1 - PAD_W : PAD_W)
#define SHIFT(v, i) (((i) / KERNEL_W - BELOW_H) * (v).pitch + (i) % KERNEL_W - BELOW_W)
#define BELOW(v) (BELOW_H * (v).pitch + BELOW_W)
#define SPAN(v) ((KERNEL_H - 1) * (v).pitch + KERNEL_W - 1)
#define PHASE_OF(i) 0
#define BEGINS_PHASE(i) ((i) == 0)
#else
#define PHASES 4
#define TAP(i, back) ((int)(0x862071534ul >> 4 * (i)) & 15) /* 4, then 3 5, 1 7, and 0 2 6 8 */
#define DISTANCE(v, tap) (((tap) / 3 == 0) * (v).pitch + ((tap) % 3 == 0))
#define SHIFT(v, i) (DIRECTION == 1 ? DISTANCE(v, TAP(i, 1)) : -DISTANCE(v, TAP(i, 0)))
#define BELOW(v) (DIRECTION == 1 ? 0 : (v).pitch + 1)
#define SPAN(v) ((v).pitch + 1)
#define PHASE_OF(i) (((i) >= 1) + ((i) >= 3) + ((i) >= 5)) /* 2 in odd rows, and 1 in odd columns */
#define BEGINS_PHASE(i) (0x2b >> (i) & 1)
#define FIRST_OF_PHASE(phase) (0x5310 >> 4 * (phase) & 15)
#define TAPS_OF_PHASE(phase) (((phase) / 2 + 1) * ((phase) % 2 + 1))
#endif
#define PHASED (STRIDE == 2 && DIRECTION == 1) /* a tile belongs to a phase of its result */

/* The virtual pixels of x or of a phase of it, and of dy. Windows of one pixel need no zeros: an image is one row. */
INLINE Virtual sequence(int h, int w, int oh, int ow) {
#if TAPS == 1
  return virtual_pixels(1, oh * ow, 1, oh * ow);
#else
  const int rows = (h + STRIDE - 1) / STRIDE + PAD_H, pitch = (w + STRIDE - 1) / STRIDE + PAD_W;
  return DIRECTION == 1 && STRIDE == 1 ? virtual_pixels(rows, pitch, h, w) : virtual_pixels(rows, pitch, oh, ow);
#endif
}

#if DIRECTION < 2
#ifndef STEP_TAPS
#define STEP_TAPS 1
#endif
#define TAP_BYTES (CB * NT * ELEMENT_BYTES) /* of filters */
#define STEP_BYTES (STEP_TAPS * TAP_BYTES)
#define PLANE (PATCH * PIXEL_BYTES) /* of a block of channels */
#define PATCH_BYTES (PLANE * (CB / 8))
#define DEPTH_BYTES (PLANE * (PRODUCT_DEPTH / 8)) /* to the next product */
#define WORDS ((PATCHES * PATCH_BYTES + FILTERS * STEP_BYTES) / 16 + PATCHES + FILTERS)
#define REUSES_PLACES (PHASES == 1 || DIRECTION == 1) /* all patches of a tile have the same pixels */
#define PIXEL_COPIERS 96 /* the last of the COPIERS copies filters */
#define GROUPS (NT / (4 * LINE)) /* lines of results that a work-item has of a pixel */
#ifdef FUSED_RELU
#define MOST_TOGETHER (FUSED_RELU == 2 ? 2 : 4)
#else
#define MOST_TOGETHER 4
#endif
#define TOGETHER (GROUPS < MOST_TOGETHER ? GROUPS : MOST_TOGETHER) /* of them that are read before they are written, of two pixels */
#ifdef WGMMA
#define SHARERS WARPS /* with a sum of one channel */
#else
#define SHARERS (WARPS * 8)
#endif

#define SUM(j, lower) ((j) / 2 * 4 + 2 * (lower) + (j) % 2) /* the index of value j of a pixel: of the upper one, or of the lower one of the two */
#define PARTS_OF_TAP (CB / PRODUCT_DEPTH)
#define PARTS_OF_SET (STEP_TAPS * PARTS_OF_TAP % 4 == 0 && PARTS_OF_TAP % 2 == 0 ? 2 : 1) /* so that a step has an even number of sets */
/* A line of results, and the operand of a fused ReLU for it: its values, or a word of the mask for each. */
typedef union { uint4 all; uint word[4]; } Line;
#ifdef BLOCK_FLOAT
typedef uint4 Words;
#define WIDE_OF(line, c) as_float(line.word[c])
#else
typedef uint8 Words;
#define WIDE_OF(line, c) as_float((c) % 2 ? line.word[(c) / 2] & 0xffff0000u : line.word[(c) / 2] << 16)
#endif
#if defined(FUSED_RELU) && FUSED_RELU == 2
typedef union { Words all; uint word[LINE]; } Signs;
#define LOAD_SIGNS(signs, sign, element) signs.all = *(global const Words*)((global const uint*)(sign) + MASK_WORD(element))
#define PASSING(signs, c, element) (signs.word[c] >> MASK_BIT(element) & 1u)
#else
typedef Line Signs;
#define LOAD_SIGNS(signs, sign, element) signs.all = *(global const uint4*)((global const BLOCK_T*)(sign) + (element))
#define PASSING(signs, c, element) (WIDE_OF(signs, c) > 0.0f)
#endif

/* Steps of CB channels, a multiple of 16: zeros follow an odd number of blocks. */
#define STEPS_OF(depth) (((depth) + 15) / 16 * 16 / CB)

#if DIRECTION == 0
#define DEPTH channels
#define ROWS outputs
#else
#define DEPTH outputs
#define ROWS channels
#endif

/* The channel of value j of a work-item, within its tile (row_of_column). */
#define CHANNEL(j) ((j) / LINE * (4 * LINE) + item % 4 % (LINE / 2) * 8 + item % 4 / (LINE / 2) * LINE + (j) % LINE)

#ifdef CHANNEL_REDUCTION
/* Add up the values of the work-items for each of the NT channels. The result of channel c is at shared[c * (SHARERS + 1)]. `sum` changes. */
INLINE void channel_totals(local float* shared, float sum[NT / 4], int item) {
#ifdef WGMMA
  /* Eight work-items of a warp have the same channels. Each adds up an eighth of them. */
  int own = 0;
#define HALVE(count, mask)                                                      \
  {                                                                             \
    const int upper = item & (mask);                                            \
    own += upper ? (count) : 0;                                                 \
    _Pragma("unroll") for (int j = 0; j < (count); ++j) {                       \
      const float kept = upper ? sum[(count) + j] : sum[j];                     \
      sum[j] = kept + of_other_lane(upper ? sum[j] : sum[(count) + j], (mask)); \
    }                                                                           \
  }
  HALVE(NT / 8, 16)
  HALVE(NT / 16, 8)
  HALVE(NT / 32, 4)
  const int sharer = item / 32, has = 1, count = NT / 32;
#else
  const int own = 0, sharer = item / 4, has = item < WARPS * 32, count = NT / 4;
#endif
  BARRIER_OF_WARPS;
  if (has)
#pragma unroll
    for (int j = 0; j < count; ++j) shared[CHANNEL(own + j) * (SHARERS + 1) + sharer] = sum[j];
  BARRIER_OF_WARPS;
  if (item < NT) {
    float total = 0.0f;
    for (int i = 0; i < SHARERS; ++i) total += shared[item * (SHARERS + 1) + i];
    shared[item * (SHARERS + 1)] = total;
  }
  BARRIER_OF_WARPS;
}
#endif

/* The existing pixels before virtual pixel `end` of the batch: whole images, whole rows, and pixels of the row. */
INLINE int pixels_until(const Virtual v, int end) {
  const int image = end / (v.rows * v.pitch), row = end % (v.rows * v.pitch) / v.pitch;
  return (image * v.height + min(row, v.height)) * v.width + (row < v.height ? min(end % v.pitch, v.width) : 0);
}

/* `work` tiles of the result. Each of `columns` tiles of virtual pixels has `tiles` tiles of outputs, as many of each group of channels. PHASED: all tiles of a
   phase follow each other, those of the phase with the most taps are first. */
kernel __attribute__((reqd_work_group_size(NT_ITEMS, 1, 1))) void
#if DIRECTION == 0
forward
#else
backward_data
#endif
(OPERAND_RESTRICT(const BLOCK_T, x), OPERAND_RESTRICT(const uint, packed), REDUCTION_OPERANDS SIGN OPERAND_RESTRICT(const float, bias), OPERAND(BLOCK_T, y), SIZES,
 int tiles, int columns, int work, int has_bias, int accumulate, SLOPE_OR_ACTIVATION) {
  local uint4 store[WORDS] __attribute__((aligned(128)));
  local uint places[2][PATCH]; /* of this tile, while others still read those of the last one */
#ifdef CHANNEL_REDUCTION
  local float shared[NT * (SHARERS + 1)];
#endif
  local uchar* memory = (local uchar*)store;
  LOCATE(x), LOCATE(packed), LOCATE(bias), LOCATE(y);
  LOCATE_SIGN;
  const uint patches = LOCAL_ADDRESS(store), ring = patches + PATCHES * PATCH_BYTES;
  const int item = get_local_id(0), warp = item / 32, lane = item % 32, blocks = STEPS_OF(DEPTH), pixels = DIRECTION == 0 ? oh * ow : h * w;
  const Virtual v = sequence(h, w, oh, ow);
  const int first = get_group_id(0), groups = get_num_groups(0), count = 128 * MB + SPAN(v);
#if defined(WGMMA) && defined(BLOCK_FLOAT)
  local const uchar* left = memory + (BELOW(v) + warp / 4 * (64 * MB) + warp % 4 * 16) * PIXEL_BYTES + place_in_rows();
#else
  const uint left = patches + (BELOW(v) + warp / 4 * (64 * MB)) * PIXEL_BYTES;
#endif
  const ulong filters = (ulong)TAP_BYTES / 4 * blocks * TAPS; /* of a tile, in words */
#define CHANNEL_GROUP(tile) (CHANNEL_GROUPS == 1 ? 0 : (tile) % tiles / (tiles / CHANNEL_GROUPS))
#define COLUMN(tile) ((tile) / tiles % columns)
#define BEGIN(tile) (COLUMN(tile) * (128 * MB))
#if PHASED
#define TILE_PHASE(tile) (PHASES - 1 - (tile) / (tiles * columns))
#define FIRST_STEP(tile) FIRST_OF_PHASE(TILE_PHASE(tile))
#define STEPS(tile) TAPS_OF_PHASE(TILE_PHASE(tile))
#else
#define FIRST_STEP(tile) 0
#define STEPS(tile) TAPS
#endif
#if DIRECTION == 0
  Image image = {x, x_stride, DEPTH / 8, TAPS == 1 ? 1 : h, TAPS == 1 ? h * w : w, STRIDE, 0, 0};
#else
  Image image = {x, x_stride, DEPTH / 8, TAPS == 1 ? 1 : oh, TAPS == 1 ? oh * ow : ow, 1, 0, 0};
#endif
#define SOURCE_OF(tile) (x + (ulong)CHANNEL_GROUP(tile) * (DEPTH / 8) * image.h * image.w * 8)
#define FIND_PLACES(places, worker, workers) find_places(places, image, v, images, BEGIN(tile) - BELOW(v), count, worker, workers)
#define COPY_PATCH(to, places, block, worker, workers) \
  copy_pixels(to, PLANE, image, places, (block) * (CB / 8), CB / 8, count, worker, workers, memory)
#ifdef WGMMA
  const uint bars = ring + FILTERS * STEP_BYTES;
  const uint patch_full = bars, patch_empty = bars + 8 * PATCHES, filters_full = bars + 16 * PATCHES, filters_empty = filters_full + 8 * FILTERS;
  if (item == 0) {
    bars_of_ring(patch_full, PATCHES, PIXEL_COPIERS);
    bars_of_ring(filters_full, FILTERS, 1);
    async_fence();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  int patch = 0, step = 0; /* of all tiles of the group */
  if (warp >= WARPS) {
    GIVE_REGISTERS(40);
    const int worker = item - WARPS * 32;
    if (worker < PIXEL_COPIERS) {
      int table = 0;
      for (int tile = first; tile < work; tile += groups) {
        image.x = SOURCE_OF(tile);
        for (int i = 0; i < blocks * (PHASED ? 1 : PHASES); ++i, ++patch) {
          const int p = patch % PATCHES;
#if PHASES > 1 && !PHASED
          image.phase_y = i % PHASES / 2, image.phase_x = i % 2;
#endif
          if (i == 0 || !REUSES_PLACES) {
            table ^= 1;
            FIND_PLACES(places[table], worker, PIXEL_COPIERS);
            BARRIER_OF_TEAM(0, 96);
          }
          if (patch >= PATCHES) bar_wait(patch_empty + 8 * p, (patch / PATCHES + 1) & 1);
          COPY_PATCH(patches + p * PATCH_BYTES, places[table], i / (PHASED ? 1 : PHASES), worker, PIXEL_COPIERS);
          bar_arrive_after_copies(patch_full + 8 * p);
        }
      }
      copies_finish();
    } else if (worker == PIXEL_COPIERS) {
      for (int tile = first; tile < work; tile += groups)
        for (int block = 0; block < blocks; ++block)
          for (int i = FIRST_STEP(tile); i < FIRST_STEP(tile) + STEPS(tile); i += STEP_TAPS, ++step) {
            const int f = step % FILTERS;
            if (step >= FILTERS) bar_wait(filters_empty + 8 * f, (step / FILTERS + 1) & 1);
            bar_expect(filters_full + 8 * f, STEP_BYTES);
            copy_bulk(ring + f * STEP_BYTES, packed + tile % tiles * filters + (ulong)(block * TAPS + i) * (TAP_BYTES / 4), STEP_BYTES, filters_full + 8 * f, memory);
          }
    }
    return;
  }
  TAKE_REGISTERS(232);
#endif
  for (int tile = first; tile < work; tile += groups) {
    float d[MB][NT / 2];
#pragma unroll
    for (int i = 0; i < MB; ++i)
#pragma unroll
      for (int j = 0; j < NT / 2; ++j) d[i][j] = 0.0f;
    const int begin_step = FIRST_STEP(tile);
#ifdef WGMMA
#ifdef BLOCK_FLOAT
    uint rows[2][PARTS_OF_SET][MB][4];
#endif
    /* One loop over blocks and taps: around two, ptxas would serialize the products. */
    for (int s = 0, i = 0; s < blocks * STEPS(tile) / STEP_TAPS; ++s, ++step) {
      const int begins = PHASED ? i == 0 : BEGINS_PHASE(i), f = step % FILTERS, wanted = lane == 0 && s > 0;
      if (begins) {
        bar_wait(patch_full + 8 * (patch % PATCHES), patch / PATCHES & 1);
        async_fence();
      }
      patch += begins;
      bar_wait(filters_full + 8 * f, step / FILTERS & 1);
#ifdef BLOCK_FLOAT
      local const uchar* own = left + (patch - 1) % PATCHES * PATCH_BYTES;
      /* A set of products is in flight while the next rows are loaded, to other registers. */
#pragma unroll
      for (int q = 0; q < STEP_TAPS * PARTS_OF_TAP; q += PARTS_OF_SET) {
        const int t = q / PARTS_OF_TAP;
        local const uchar* a = own + SHIFT(v, begin_step + i + t) * PIXEL_BYTES;
        const ulong b = descriptor(ring + f * STEP_BYTES + t * TAP_BYTES, NT * 16, 128);
#pragma unroll
        for (int e = 0; e < PARTS_OF_SET; ++e)
#pragma unroll
          for (int m = 0; m < MB; ++m) rows_of_pixels(rows[q / PARTS_OF_SET % 2][e][m], a + (q + e) % PARTS_OF_TAP * DEPTH_BYTES + m * 64 * PIXEL_BYTES);
        products_begin();
#pragma unroll
        for (int e = 0; e < PARTS_OF_SET; ++e) {
          MULTIPLY_ROWS(d[0], rows[q / PARTS_OF_SET % 2][e][0], b + (q + e) % PARTS_OF_TAP * APART(2 * NT * 16));
#if MB == 2
          MULTIPLY_ROWS(d[1], rows[q / PARTS_OF_SET % 2][e][1], b + (q + e) % PARTS_OF_TAP * APART(2 * NT * 16));
#endif
        }
        products_commit();
        products_wait();
      }
#else
      const uint own = left + (patch - 1) % PATCHES * PATCH_BYTES;
      products_begin();
#pragma unroll
      for (int t = 0; t < STEP_TAPS; ++t) {
        const ulong a = descriptor(own + SHIFT(v, begin_step + i + t) * PIXEL_BYTES, PLANE, 128),
                    b = descriptor(ring + f * STEP_BYTES + t * TAP_BYTES, NT * 16, 128);
#pragma unroll
        for (int k = 0; k < PARTS_OF_TAP; ++k) {
          MULTIPLY(d[0], a + k * APART(DEPTH_BYTES), b + k * APART(2 * NT * 16), memory);
#if MB == 2
          MULTIPLY(d[1], a + k * APART(DEPTH_BYTES) + APART(64 * PIXEL_BYTES), b + k * APART(2 * NT * 16), memory);
#endif
        }
      }
      products_commit();
      products_wait();
#endif
      bar_arrive(filters_empty + 8 * ((step + FILTERS - 1) % FILTERS), wanted);
      bar_arrive(patch_empty + 8 * ((patch + PATCHES - 2) % PATCHES), wanted && begins);
      i = i + STEP_TAPS == STEPS(tile) ? 0 : i + STEP_TAPS;
    }
    FINISH(d[0]);
#if MB == 2
    FINISH(d[1]);
#endif
    bar_arrive(filters_empty + 8 * ((step + FILTERS - 1) % FILTERS), lane == 0);
    bar_arrive(patch_empty + 8 * ((patch + PATCHES - 1) % PATCHES), lane == 0);
#else
    image.x = SOURCE_OF(tile);
    for (int block = 0; block < blocks; ++block)
      for (int i = 0; i < STEPS(tile); i += STEP_TAPS) {
        const int copies = warp >= WARPS && (PHASED ? i == 0 : BEGINS_PHASE(i));
#if PHASES > 1 && !PHASED
        image.phase_y = PHASE_OF(i) / 2, image.phase_x = PHASE_OF(i) % 2;
#endif
        barrier(CLK_LOCAL_MEM_FENCE);
        if (copies) FIND_PLACES(places[0], item - WARPS * 32, COPIERS);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (copies) COPY_PATCH(patches, places[0], block, item - WARPS * 32, COPIERS);
        if (item == WARPS * 32)
          copy_bulk(ring, packed + tile % tiles * filters + (ulong)(block * TAPS + begin_step + i) * (TAP_BYTES / 4), STEP_BYTES, 0, memory);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (warp >= WARPS) continue;
        for (int t = 0; t < STEP_TAPS; ++t) {
          const ulong a = descriptor(left + SHIFT(v, begin_step + i + t) * PIXEL_BYTES, PLANE, 128);
          const ulong b = descriptor(ring + t * TAP_BYTES, NT * 16, 128);
          for (int k = 0; k < PARTS_OF_TAP; ++k)
            for (int m = 0; m < MB; ++m) MULTIPLY(d[m], a + k * APART(DEPTH_BYTES) + m * APART(64 * PIXEL_BYTES), b + k * APART(2 * NT * 16), memory);
        }
      }
#endif

    const int group = CHANNEL_GROUP(tile), row0 = (tile % tiles - group * (tiles / CHANNEL_GROUPS)) * NT, channel0 = group * ROWS + row0;
#ifdef CHANNEL_REDUCTION
    float sum[NT / 4];
#pragma unroll
    for (int j = 0; j < NT / 4; ++j) sum[j] = 0.0f;
#endif
    /* Of each group of 4 * LINE channels a work-item has a line: of this block, from this channel on (row_of_column). */
    const int own_block = item % 4 % (LINE / 2), own_channel = item % 4 / (LINE / 2) * LINE, existing_blocks = min(NT, ROWS - row0) / 8, apart = pixels * (4 * LINE);
    if (has_bias)
#pragma unroll
      for (int g = 0; g < GROUPS; ++g)
        if (g * (LINE / 2) + own_block < existing_blocks)
#pragma unroll
          for (int c = 0; c < LINE; ++c) {
            const int channel = channel0 + CHANNEL(g * LINE + c);
            const float factor = FACTOR(bias, channel), offset = OFFSET(bias, channel);
#pragma unroll
            for (int i = 0; i < MB; ++i)
#pragma unroll
              for (int lower = 0; lower < 2; ++lower) d[i][SUM(g * LINE + c, lower)] = d[i][SUM(g * LINE + c, lower)] * factor + offset;
          }
    int exists[MB][2];
#pragma unroll
    for (int i = 0; i < MB; ++i) {
      int element[2];
      global BLOCK_T* to[2];
#ifdef FUSED_RELU
      global const SIGN_T* signs[2];
#endif
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const Place p = place_of(v, BEGIN(tile) + (warp / 4 * MB + i) * 64 + sum_row(2 * lower));
#if PHASED
        const int row = 2 * p.row + TILE_PHASE(tile) / 2, column = 2 * p.column + TILE_PHASE(tile) % 2, pixel = row * w + column, within = row < h && column < w;
#else
        const int pixel = p.row * v.width + p.column, within = 1;
#endif
        exists[i][lower] = warp < WARPS && p.column < v.width && p.row < v.height && p.sample < images && within && own_block < existing_blocks;
        const ulong sample = exists[i][lower] ? p.sample : 0;
        element[lower] = exists[i][lower] ? ((channel0 / 8 + own_block) * pixels + pixel) * 8 + own_channel : 0;
        to[lower] = y + sample * y_stride + element[lower];
#ifdef FUSED_RELU
        signs[lower] = sign + sample * sign_stride;
#endif
      }
      /* Loads precede stores: the compiler does not move a load over a store, so that each would wait for memory. They have no conditions: around a branch
         it would not have several in flight. Of a result that does not exist, another element is read. */
#pragma unroll
      for (int first_g = 0; first_g < GROUPS; first_g += TOGETHER) {
        Line old[2 * TOGETHER];
        Signs passes[2 * TOGETHER];
#define LOWER (n / TOGETHER) /* of result n */
#define GROUP (first_g + n % TOGETHER)
#define EXISTS (exists[i][LOWER] && GROUP * (LINE / 2) + own_block < existing_blocks)
        if (accumulate)
#pragma unroll
          for (int n = 0; n < 2 * TOGETHER; ++n) old[n].all = *(global const uint4*)(to[LOWER] + (EXISTS ? GROUP * apart : 0));
#ifdef FUSED_RELU
#pragma unroll
        for (int n = 0; n < 2 * TOGETHER; ++n) LOAD_SIGNS(passes[n], signs[LOWER], element[LOWER] + (EXISTS ? GROUP * apart : 0));
#endif
#pragma unroll
        for (int n = 0; n < 2 * TOGETHER; ++n)
          if (EXISTS) {
            Line line;
            float before = 0.0f;
#pragma unroll
            for (int c = 0; c < LINE; ++c) {
              float value = d[i][SUM(GROUP * LINE + c, LOWER)];
              if (accumulate) value += WIDE_OF(old[n], c);
              value = IF_FUSED_RELU(PASSING(passes[n], c, element[LOWER] + GROUP * apart), value > 0.0f) ? value : slope * value;
              value = BOUNDED_IF_DEFINED(float, value);
#ifdef CHANNEL_REDUCTION
              sum[GROUP * LINE + c] += value, d[i][SUM(GROUP * LINE + c, LOWER)] = value;
#endif
#ifdef BLOCK_FLOAT
              line.word[c] = as_uint(value);
#else
              if (c % 2) line.word[c / 2] = narrow2((float2)(before, value));
              before = value;
#endif
            }
            *(global uint4*)(to[LOWER] + GROUP * apart) = line.all;
          }
      }
    }
#ifdef CHANNEL_REDUCTION
    /* Statistics, or the sums alone, of the values, before they were rounded to bfloat16. */
    const int parts = reduced_stride / (ROWS * CHANNEL_GROUPS), existing = min(NT, ROWS - row0);
    global float* own_part = reduced + reduced_offset + (ulong)(channel0 + item) * parts + COLUMN(tile);
    channel_totals(shared, sum, item);
#if CHANNEL_REDUCTION == 3
    if (item < existing) *own_part = shared[item * (SHARERS + 1)];
#else
    const float values = pixels_until(v, min(BEGIN(tile) + 128 * MB, images * v.rows * v.pitch)) - pixels_until(v, BEGIN(tile));
    const float inverse = values > 0.0f ? 1.0f / values : 0.0f;
    if (item < existing) own_part[0] = values, own_part[reduced_stride] = shared[item * (SHARERS + 1)] * inverse;
#pragma unroll
    for (int j = 0; j < NT / 4; ++j) {
      const float mean = shared[CHANNEL(j) * (SHARERS + 1)] * inverse;
      sum[j] = 0.0f;
#pragma unroll
      for (int i = 0; i < MB; ++i)
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
          const float deviation = exists[i][lower] ? d[i][SUM(j, lower)] - mean : 0.0f;
          sum[j] += deviation * deviation;
        }
    }
    channel_totals(shared, sum, item);
    if (item < existing) own_part[2 * reduced_stride] = shared[item * (SHARERS + 1)];
#endif
#endif
  }
}

#else

#ifndef HALVES
#define HALVES 1
#endif
#ifndef TAP_ROWS
#define TAP_ROWS 1
#endif
#define GROUP_TAPS (TAP_ROWS * KERNEL_W)
#define ROWS (128 / HALVES) /* of the products of a group */
#define PARTS_OF_STEP (STEP / PRODUCT_DEPTH / HALVES) /* products of a warp, each of PRODUCT_DEPTH pixels */
/* Tap `i` of a group begins at pixel OFFSET_OF(i) of patch IMAGE(i). The first tap of patch i is in row ROW_OF(i) of the rows of the group. */
#if STRIDE == 1
#define IMAGES TAP_ROWS
#define ROW_OF(i) (i)
#define REACH (KERNEL_W - 1) /* pixels of a patch beyond those of a step, and how many of them are before it */
#define REACH_BEFORE PAD_W
#define ROWS_FURTHER(row) ((row) - PAD_H)
#define PHASE_OF_ROW(row) 0
#define PHASE_OF_IMAGE(i) 0
#define IMAGE(i) ((i) / KERNEL_W)
#define OFFSET_OF(i) ((i) % KERNEL_W)
#else
#define IMAGES 2 /* even and odd columns */
#define ROW_OF(i) 0
#define REACH 1
#define REACH_BEFORE 1
#define ROWS_FURTHER(row) (-((row) == 0))
#define PHASE_OF_ROW(row) ((row) != 1)
#define PHASE_OF_IMAGE(i) (i)
#define IMAGE(i) ((i) != 1)
#define OFFSET_OF(i) ((i) != 0)
#endif
#if GROUP_TAPS * NT > 320 /* sums of a work-item, two for each of its registers */
#define OF_OTHERS 232
#define OF_COPIERS 40
#else
#define OF_OTHERS 208
#define OF_COPIERS 80
#endif
#define PRODUCTS_OF_SET (PARTS_OF_STEP * GROUP_TAPS % 4 == 0 && OF_OTHERS == 208 ? 2 : 1) /* a step has an even number of sets, which fit the registers */
#ifndef BLOCK_FLOAT
#define TEAM COPIERS
#endif
#define TEAMS (COPIERS / TEAM)
#define PATCH (STEP + (REACH + 7) / 8 * 8)
#ifdef BLOCK_FLOAT
#define CHANNELS ROWS /* of a group */
#define OUTPUTS NT
#define GIVEN_BYTES (STEP / 4 * (NT / 8) * QUAD_BYTES) /* of dy */
#else
#define CHANNELS NT
#define OUTPUTS ROWS
#define GIVEN_BYTES (STEP * ROWS * 2)
#endif
#define PATCH_BYTES (PATCH * CHANNELS * ELEMENT_BYTES)
#define SHARES (TEAM / (STEP * LINES) > 1 ? TEAM / (STEP * LINES) : 1) /* work-items that share the copies of a line of channels */
#define REACH_SHARES (CHANNELS / 8 * LINES * REACH <= TEAM ? CHANNELS / 8 : TEAM / (REACH * LINES + !REACH))
#define STEP_BYTES (GIVEN_BYTES + IMAGES * PATCH_BYTES)
#define WORDS (STEPS * STEP_BYTES / 16 + STEPS)
#define PIXELS (STEP * LINES > TEAM ? STEP * LINES / TEAM : 1) /* of a step that a work-item copies */
#define GIVEN_PLANE (GIVEN_BYTES / (OUTPUTS / 8))
#define IMAGE_PLANE (PATCH * PIXEL_BYTES)

kernel __attribute__((reqd_work_group_size(NT_ITEMS, 1, 1))) void backward_filter(OPERAND_RESTRICT(const BLOCK_T, x), OPERAND_RESTRICT(const BLOCK_T, dy),
                                                                                  OPERAND(float, parts), SIZES, int steps) {
  local uint4 store[WORDS] __attribute__((aligned(128)));
  local uchar* memory = (local uchar*)store;
  LOCATE(x), LOCATE(dy), LOCATE(parts);
  const uint buffers = LOCAL_ADDRESS(store);
  const int item = get_local_id(0), warp = item / 32, lane = item % 32, worker = (item - WARPS * 32) % TEAM;
  const int group = get_group_id(2) % CHANNEL_GROUPS, split = get_group_id(2) / CHANNEL_GROUPS, begin = split * steps * STEP;
  const int team = (item - WARPS * 32) / TEAM;
  const int apart = KERNEL_H / TAP_ROWS, row = get_group_id(1) % apart * TAP_ROWS, row0 = get_group_id(1) / apart * ROWS, column0 = get_group_id(0) * NT;
#ifdef BLOCK_FLOAT
  const int output0 = column0, channel0 = row0;
#else
  const int output0 = row0, channel0 = column0;
#endif
  const int given_blocks = min(OUTPUTS / 8, (outputs - output0) / 8), blocks = min(CHANNELS / 8, (channels - channel0) / 8);
  const Virtual v = sequence(h, w, oh, ow);
  float d[GROUP_TAPS][NT / 2];
#pragma unroll
  for (int i = 0; i < GROUP_TAPS; ++i)
#pragma unroll
    for (int j = 0; j < NT / 2; ++j) d[i][j] = 0.0f;
  const int side = warp / 4; /* of the rows, or of the pixels of a step */
  x += (ulong)group * channels * h * w, dy += (ulong)group * outputs * oh * ow;
  Image image = {x, x_stride, channels / 8, TAPS == 1 ? 1 : h, TAPS == 1 ? h * w : w, STRIDE, PHASE_OF_ROW(row), 0};
  const Image gradient = {dy, dy_stride, outputs / 8, v.height, v.width, 1, 0, 0};
  /* The pixels of a step: those of dy, and those of each patch of x. A work-item copies PIXELS of each, and perhaps one that the windows reach beyond the
     step. It copies lines of every SHARES-th block of channels, or of every REACH_SHARES-th. */
  const int line = worker % LINES, own = worker / LINES, own_pixel = own % (STEP / PIXELS), share = own / (STEP / PIXELS);
  const int reaches = REACH > 0 && own < REACH * REACH_SHARES, own_reach = STEP + own % (REACH + !REACH), reach_share = own / (REACH + !REACH);
  uint of_given[PIXELS], of_image[IMAGES][PIXELS], of_reach[IMAGES];
#define FIND(found, i, at)                                                                     \
  {                                                                                            \
    const Place p = place_of(v, at);                                                           \
    _Pragma("unroll") for (int i = 0; i < IMAGES; ++i) {                                       \
      image.phase_x = PHASE_OF_IMAGE(i);                                                       \
      found = (at) < 0 ? MISSING : pixel_of(image, p, ROWS_FURTHER(row + ROW_OF(i)), images);  \
    }                                                                                          \
  }
#define FIND_PLACES(step)                                                                      \
  {                                                                                            \
    const int first = begin + (step) * STEP;                                                   \
    _Pragma("unroll") for (int n = 0; n < PIXELS; ++n) {                                       \
      const int at = first + own_pixel + n * (STEP / PIXELS);                                  \
      of_given[n] = pixel_of(gradient, place_of(v, at), 0, images);                            \
      FIND(of_image[i][n], i, at - REACH_BEFORE)                                               \
    }                                                                                          \
    if (reaches) FIND(of_reach[i], i, first + own_reach - REACH_BEFORE)                        \
  }
#define COPY_STEP(to)                                                                                                                                        \
  {                                                                                                                                                          \
    _Pragma("unroll") for (int n = 0; n < PIXELS; ++n) {                                                                                                     \
      const int pixel = own_pixel + n * (STEP / PIXELS);                                                                                                     \
      copy_lines((to) + share * GIVEN_PLANE + pixel * PIXEL_BYTES + pixel / 4 * GAP, GIVEN_PLANE, gradient, of_given[n], line, output0 / 8 + share, OUTPUTS / 8, \
                 SHARES, given_blocks - share, SKIP, memory);                                                                                                \
      _Pragma("unroll") for (int i = 0; i < IMAGES; ++i)                                                                                                     \
        copy_lines((to) + GIVEN_BYTES + i * PATCH_BYTES + share * IMAGE_PLANE + pixel * PIXEL_BYTES, IMAGE_PLANE, image, of_image[i][n], line,               \
                   channel0 / 8 + share, CHANNELS / 8, SHARES, blocks - share, SKIP, memory);                                                                \
    }                                                                                                                                                        \
    if (reaches)                                                                                                                                             \
      _Pragma("unroll") for (int i = 0; i < IMAGES; ++i)                                                                                                     \
        copy_lines((to) + GIVEN_BYTES + i * PATCH_BYTES + reach_share * IMAGE_PLANE + own_reach * PIXEL_BYTES, IMAGE_PLANE, image, of_reach[i], line,        \
                   channel0 / 8 + reach_share, CHANNELS / 8, REACH_SHARES, blocks - reach_share, SKIP, memory);                                              \
  }
#define LEFT_PART(k) ((k) * PRODUCT_DEPTH * PIXEL_BYTES) /* from the first product of a step to product k in the left operand */
#ifdef BLOCK_FLOAT
#define GAP QUAD_GAP
#define RIGHT_PART(k) ((k) * 2 * QUAD_BYTES)
#define LEFT_TAP(i) (IMAGE(i) * PATCH_BYTES + OFFSET_OF(i) * PIXEL_BYTES)
#define RIGHT_TAP(i) 0
#define PLANE (PATCH * PIXEL_BYTES)
#define SIDE_ROWS (8 * PLANE)
  const uint left = GIVEN_BYTES, right = 0;
#define LEFT(at) descriptor(at, 128, PLANE)
#define RIGHT(at) descriptor(at, QUAD_BYTES, STEP / 4 * QUAD_BYTES)
#else
#define GAP 0
#define RIGHT_PART(k) LEFT_PART(k)
#define LEFT_TAP(i) 0
#define RIGHT_TAP(i) (IMAGE(i) * PATCH_BYTES + OFFSET_OF(i) * PIXEL_BYTES)
#define SIDE_ROWS (8 * STEP * PIXEL_BYTES)
  const uint left = 0, right = GIVEN_BYTES;
#define LEFT(at) descriptor(at, 128, STEP * PIXEL_BYTES)
#define RIGHT(at) descriptor(at, 128, PATCH * PIXEL_BYTES)
#endif
  /* The operands of this group of warps in the first buffer. */
  const uint own_left = buffers + left + (HALVES == 2 ? side * LEFT_PART(PARTS_OF_STEP) : side * SIDE_ROWS);
  const uint own_right = buffers + right + (HALVES == 2 ? side * RIGHT_PART(PARTS_OF_STEP) : 0);
#define MULTIPLY_TAPS(k, a, b)           \
  for (int i = 0; i < GROUP_TAPS; ++i) \
  MULTIPLY_PIXELS(d[i], (a) + APART(LEFT_PART(k) + LEFT_TAP(i)), (b) + APART(RIGHT_PART(k) + RIGHT_TAP(i)), memory)
#ifdef WGMMA
  const uint full = buffers + STEPS * STEP_BYTES, empty = full + 8 * STEPS;
  if (item == 0) {
    bars_of_ring(full, STEPS, TEAM);
    async_fence();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  int buffer = 0, round = 0;
  if (warp >= WARPS) {
    GIVE_REGISTERS(OF_COPIERS);
#ifdef BLOCK_FLOAT
    /* The teams take turns, so that one copies while others find places or transpose. Of a team the copies of AHEAD steps are in flight. Only the readers have
       the fence: here it would wait for the other copies. */
    for (int step = team, turn = 0; step < steps + TEAMS * AHEAD; step += TEAMS, ++turn) {
      const int ready = step - TEAMS * AHEAD;
      if (turn >= AHEAD) COPIES_WAIT(OTHERS_IN_FLIGHT);
      if (step < steps) FIND_PLACES(step)
      BARRIER_OF_TEAM(team, TEAM);
      if (ready >= 0) {
        transpose_quads(ready % STEPS * STEP_BYTES, given_blocks, STEP, worker, TEAM, memory);
        bar_arrive(full + 8 * (ready % STEPS), 1);
      }
      if (step < steps) {
        const uint to = buffers + step % STEPS * STEP_BYTES;
        if (step >= STEPS) bar_wait(empty + 8 * (step % STEPS), (step / STEPS + 1) & 1);
        COPY_STEP(to)
      }
      copies_commit();
    }
#else
    for (int step = 0; step < steps; ++step) {
      FIND_PLACES(step)
      if (round > 0) bar_wait(empty + 8 * buffer, (round + 1) & 1);
      COPY_STEP(buffers + buffer * STEP_BYTES)
      bar_arrive_after_copies(full + 8 * buffer);
      buffer = buffer + 1 == STEPS ? 0 : buffer + 1, round += buffer == 0;
    }
    copies_finish();
#endif
    return;
  }
  TAKE_REGISTERS(OF_OTHERS);
  int before = 0;
#ifdef BLOCK_FLOAT
  uint rows[2][PRODUCTS_OF_SET][4];
  local const uchar* elements = memory + (own_left - buffers) + warp % 4 * (2 * PLANE) + place_in_channels();
#endif
  for (int step = 0; step < steps; ++step) {
    bar_wait(full + 8 * buffer, round & 1);
    async_fence();
    const ulong b = RIGHT(own_right + buffer * STEP_BYTES);
#ifdef BLOCK_FLOAT
    /* A set of products is in flight while the next rows are loaded, to other registers. */
    local const uchar* a = elements + buffer * STEP_BYTES;
#pragma unroll
    for (int q = 0; q < PARTS_OF_STEP * GROUP_TAPS; q += PRODUCTS_OF_SET) {
#pragma unroll
      for (int s = q; s < q + PRODUCTS_OF_SET; ++s)
        rows_of_channels(rows[q / PRODUCTS_OF_SET % 2][s - q], a + LEFT_PART(s / GROUP_TAPS) + LEFT_TAP(s % GROUP_TAPS), PLANE);
      products_begin();
#pragma unroll
      for (int s = q; s < q + PRODUCTS_OF_SET; ++s) MULTIPLY_ROWS(d[s % GROUP_TAPS], rows[q / PRODUCTS_OF_SET % 2][s - q], b + APART(RIGHT_PART(s / GROUP_TAPS)));
      products_commit();
      products_wait();
    }
#else
    const ulong a = LEFT(own_left + buffer * STEP_BYTES);
    products_begin();
#pragma unroll
    for (int k = 0; k < PARTS_OF_STEP; ++k)
#pragma unroll
      MULTIPLY_TAPS(k, a, b);
    products_commit();
    products_wait();
#endif
    bar_arrive(empty + 8 * before, step > 0 && lane == 0);
    before = buffer;
    buffer = buffer + 1 == STEPS ? 0 : buffer + 1, round += buffer == 0;
  }
#pragma unroll
  for (int i = 0; i < GROUP_TAPS; ++i) FINISH(d[i]);
#else
  for (int step = 0; step < steps; ++step) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp >= WARPS) {
      FIND_PLACES(step)
      COPY_STEP(buffers)
    }
#ifdef BLOCK_FLOAT
    barrier(CLK_LOCAL_MEM_FENCE);
    transpose_quads(buffers, given_blocks, STEP, item % TEAM, TEAM, memory); /* by all, who write the same */
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp >= WARPS) continue;
    const ulong a = LEFT(own_left), b = RIGHT(own_right);
    for (int k = 0; k < PARTS_OF_STEP; ++k) MULTIPLY_TAPS(k, a, b);
  }
  if (warp >= WARPS) return;
#endif
  /* Tap after tap, so that a warp writes whole sectors of 32 bytes. */
  parts += (split * HALVES + (HALVES == 2 ? side : 0)) * parts_stride + (ulong)group * outputs * channels;
#pragma unroll
  for (int i = 0; i < GROUP_TAPS; ++i)
#pragma unroll
    for (int j = 0; j < NT / 2; j += 2) {
      const int of_row = row0 + (HALVES == 2 ? 0 : side * 64) + sum_row(j), of_column = column0 + sum_column(j);
      global float* to = parts + (ulong)(row * KERNEL_W + i) * (CHANNEL_GROUPS * outputs) * channels;
#ifdef BLOCK_FLOAT
      to += (ulong)of_column * channels + of_row;
      if (of_row < channels && of_column < outputs) to[0] = d[i][j], to[channels] = d[i][j + 1];
#else
      if (of_row < outputs && of_column < channels) *(global float2*)(to + (ulong)of_row * channels + of_column) = (float2)(d[i][j], d[i][j + 1]);
#endif
    }
}
#endif
