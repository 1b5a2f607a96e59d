/* conv_gpu.cl on tensor cores: forward, backward_data and backward_filter by implicit GEMM, and pack, which packs the filters for the first two.

   pack             packed[group][tap][quad][row][word]: for each tap the quads (tile_mma.h) of the depth of every row, rounded to the format of
                    the products and padded with zeros to whole steps. A row is one output channel and its depth runs over input channels. If the
                    argument `back` is set, a row is one input channel and its depth runs over output channels
   forward          y[output][position]   = sum over (tap, channel) of packed * x
   backward_data    dx[channel][position] = sum over (tap, output) of packed * dy, as a gather
   backward_filter  dw[output][channel, tap] = sum over (sample, position) of dy * x
   split_sum        the second pass of a product whose depth was split (split_sum.h)

   Defines: the tile (tile_mma.h); the window (conv_window.h).
   DIRECTION  the kernel that the program has besides pack and split_sum: 0 forward, 1 backward_data, 2 backward_filter
   RAGGED  1: the depth of forward and backward_data is not a multiple of BK
   VECTOR  1: neighbouring positions are fetched as vectors. Every plane must have a multiple of four positions. If samples do not begin at
           multiples of 4 elements (a view of a Concat), elements are fetched singly. In forward and backward_data only for windows of
           1 x 1 with stride 1
   FLAT    forward with few channels: the depth is (channel, tap) in the order of the filters, FLAT elements long; pack treats it as one tap

   A bit mask per position says which taps are inside the image: one bit per tap of each axis, the last bit for the position itself. It is
   computed once; each step compares it with the bits of its tap.

   Groups and arguments as in conv_gpu.cl, with packed filters. A step takes BK elements of the depth of one tap (backward_filter: BK positions). NT is a multiple
   of BM and BN. */
#include "common.h"
#include "conv_window.h"
#include "epilogue.h"
#include "channel_reduction.h"
#include "split_sum.h"
#include "tile_mma.h"
#include "conv_store.h"

#ifndef DIRECTION
#define DIRECTION 0
#endif
#ifndef RAGGED
#define RAGGED 1
#endif
#ifndef VECTOR
#define VECTOR 0
#endif
#ifndef FLAT
#define FLAT 0
#endif

#if FLAT
#define STEP_DEPTH (FLAT)
#else
#define STEP_DEPTH depth
#endif

/* The size of the table with the place and the bits of each element of the depth. */
#define FLAT_DEPTH ((FLAT + BK - 1) / BK * BK)

#define POINTWISE (TAPS == 1 && !PADDED && !STRIDED)
#define BIT_W(tap) (1u << (tap))
#define BIT_H(tap) (1u << (KERNEL_W + (tap)))
#define BIT_D(tap) (1u << (KERNEL_W + KERNEL_H + (tap)))
#define EXISTS (1u << 31)

kernel void pack(OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(float, packed), int rows, int depth, int taps, int back, int count) {
  const int i = get_global_id(0);
  if (i >= count) return;
  const int quads = (depth + BK - 1) / BK * 4;
  const int row = i % rows, quad = i / rows % quads, tap = i / rows / quads % taps, group = i / rows / quads / taps;
  const ulong row_stride = back ? taps : (ulong)depth * taps, depth_stride = back ? (ulong)rows * taps : taps;
  filter += filter_offset + (ulong)group * rows * depth * taps + row * row_stride + tap;
  float v[QUAD];
#pragma unroll
  for (int e = 0; e < QUAD; ++e) v[e] = quad * QUAD + e < depth ? filter[(quad * QUAD + e) * depth_stride] : 0.0f;
  *(global uint4*)(packed + packed_offset + (ulong)i * 4) = QUAD_OF(float)(v, LEFT_SCALE);
}

#if DIRECTION < 2
#define backward DIRECTION

/* Return the bits of the taps at `base`, base + step, ... along one axis. */
INLINE uint tap_bits(int base, int step, int taps, int size) {
  uint bits = 0;
  for (int tap = 0; tap < taps; ++tap) bits |= (uint)((uint)(base + tap * step) < (uint)size) << tap;
  return bits;
}

/* DELTA: the step of the image coordinate from one tap of the filter to the next along an axis. In backward, taps of a phase are PHASE_STEP apart. */
#define DELTA(stride, dilation, phase_step) (backward ? -((phase_step) * (dilation) / (stride)) : (dilation))
#define TAPS_FROM(first, kernel_size, step) (((kernel_size) - (first) + (step)-1) / (step))

INLINE void gather(local uint4* as, local uint4* bs, local int2* table, global const SOURCE_T* source, ulong source_stride, global const float* packed,
                   global const float* bias, ulong bias_stride, global RESULT_T* target, ulong target_stride, int target_aligned, int batch,
                   int groups, int rows, int depth, int sd, int sh, int sw, int td, int th, int tw, int split_depth, int splits,
                   int has_bias, int accumulate, float slope, global const SIGNS_T* sign, ulong sign_stride, int sign_aligned,
                   const ChannelReduction reduction) {
  const int phases = backward ? PHASES : 1;
  const int tap_step_d = backward ? PHASE_STEP_D : 1, tap_step_h = backward ? PHASE_STEP_H : 1, tap_step_w = backward ? PHASE_STEP_W : 1;
  const int leaves = backward ? (PADDED | STRIDED | (TAPS > 1)) : PADDED; /* a tap may be outside of the source */
  const int item = get_local_id(0), aligned = (((size_t)source / sizeof(SOURCE_T) | source_stride) & 3) == 0; /* for VECTOR: samples begin at multiples of 4 elements */
  const int group = get_group_id(2) % groups, split = get_group_id(2) / groups;
  const Phase f = phase_of(backward, get_group_id(0) % phases, batch, td, th, tw);
  const int column0 = get_group_id(0) / phases * BN, row0 = get_group_id(1) * BM;
  if (column0 >= f.columns) return; /* the whole group returns: phases differ in size */

  const int taps_d = TAPS_FROM(f.tap_d, KERNEL_D, tap_step_d), taps_h = TAPS_FROM(f.tap_h, KERNEL_H, tap_step_h);
  const int taps_w = TAPS_FROM(f.tap_w, KERNEL_W, tap_step_w);
  const int begin = split * split_depth, end = min(STEP_DEPTH, begin + split_depth);
  const int steps = (end - begin + BK - 1) / BK * (FLAT ? 1 : taps_d * taps_h * taps_w);
  if (steps == 0 && accumulate && !has_bias && slope == 1.0f) return; /* no tap contributes to this phase, so there is nothing to add */

  /* Filters: rows past the end fetch the last one and are not stored. */
  const Share a_share = share_single(BM);
  const int all_quads = (STEP_DEPTH + BK - 1) / BK * 4;
  packed += ((ulong)group * (FLAT ? 1 : TAPS) * all_quads * rows + min(row0 + a_share.line, rows - 1)) * 4;
  int a_to[QUADS(BM)];
  places_of(a_share, QUADS(BM), a_to);

  /* The image: columns past the end fetch the last ones and are not stored. */
  const Share b_share = VECTOR ? share_across(BN) : share_single(BN);
  const int b_column = min(column0 + b_share.line, f.columns - (VECTOR ? QUADS(BN) : 1));
  int b_to[QUADS(BN)];
  places_of(b_share, QUADS(BN), b_to);
  const int b_position = b_column % f.positions, plane = sd * sh * sw;
  const int base_w = first_at(backward, f.from_w + b_position % f.count_w * f.stride_w, f.tap_w, STRIDE_W, PAD_W, DILATION_W);
  const int base_h = first_at(backward, f.from_h + b_position / f.count_w % f.count_h * f.stride_h, f.tap_h, STRIDE_H, PAD_H, DILATION_H);
  const int base_d = first_at(backward, f.from_d + b_position / f.count_w / f.count_h * f.stride_d, f.tap_d, STRIDE_D, PAD_D, DILATION_D);
  const int delta_w = DELTA(STRIDE_W, DILATION_W, PHASE_STEP_W), delta_h = DELTA(STRIDE_H, DILATION_H, PHASE_STEP_H) * sw;
  const int delta_d = DELTA(STRIDE_D, DILATION_D, PHASE_STEP_D) * sh * sw;
  uint inside = ~0u;
  if (leaves)
    inside = tap_bits(base_w, delta_w, taps_w, sw) | tap_bits(base_h, DELTA(STRIDE_H, DILATION_H, PHASE_STEP_H), taps_h, sh) << KERNEL_W |
             tap_bits(base_d, DELTA(STRIDE_D, DILATION_D, PHASE_STEP_D), taps_d, sd) << (KERNEL_W + KERNEL_H) | EXISTS;
  source += b_column / f.positions * source_stride + (ulong)group * depth * plane + (long)((base_d * sh + base_h) * sw + base_w);
#if !FLAT
  source += (ulong)b_share.quad * QUAD * plane;
#else
  for (int k = item; k < FLAT_DEPTH; k += NT) {
    const int w = k % KERNEL_W, h = k / KERNEL_W % KERNEL_H, d = k / (KERNEL_W * KERNEL_H) % KERNEL_D;
    table[k] = (int2)(k / TAPS * plane + d * delta_d + h * delta_h + w * delta_w,
                      k < FLAT ? as_int(EXISTS | (leaves ? BIT_W(w) | BIT_H(h) | BIT_D(d) : 0u)) : 0);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#endif

  float acc[TM][TN];
  SOURCE_T rb[AHEAD][QUADS(BN)][QUAD];
  uint4 ra[AHEAD][QUADS(BM)];
  tile_clear(acc);
  int at = begin, tap_d = 0, tap_h = 0, tap_w = 0;
  /* Step t is fetched while step t - AHEAD is multiplied, and is stored to local memory AHEAD - 1 steps later. */
  for (int s = 0; s < steps + AHEAD; s += AHEAD)
#pragma unroll
    for (int now = 0; now < AHEAD; ++now) {
      const int t = s + now, stored = t - AHEAD + 1; /* t is the step to fetch, `stored` the step to store */
      if (t < steps) {
        const int tap = ((f.tap_d + tap_d * tap_step_d) * KERNEL_H + f.tap_h + tap_h * tap_step_h) * KERNEL_W + f.tap_w + tap_w * tap_step_w;
        global const float* a = packed + ((ulong)(FLAT ? 0 : tap) * all_quads + at / QUAD + a_share.quad) * rows * 4;
#pragma unroll
        for (int i = 0; i < QUADS(BM); ++i) ra[now][i] = *(global const uint4*)(a + (ulong)i * (NT / BM) * rows * 4);
#if FLAT
#pragma unroll
        for (int i = 0; i < QUADS(BN); ++i)
#pragma unroll
          for (int e = 0; e < QUAD; ++e) {
            const int2 entry = table[at + (b_share.quad + i * (NT / BN)) * QUAD + e];
            rb[now][i][e] = entry.y != 0 && (inside & as_uint(entry.y)) == as_uint(entry.y) ? source[entry.x] : 0;
          }
#else
        const uint bits = BIT_W(tap_w) | BIT_H(tap_h) | BIT_D(tap_d);
        const int exists = !leaves || (inside & bits) == bits;
        global const SOURCE_T* b = source + ((long)at * plane + (long)(tap_d * delta_d + tap_h * delta_h + tap_w * delta_w));
#if RAGGED
        const int limit = at + BK <= end ? BK : end - at - b_share.quad * QUAD;
#else
        const int limit = BK;
#endif
#if VECTOR
        FETCH(across, SOURCE_T)(rb[now], QUADS(BN), b, plane, QUADS(BN), limit, limit == BK && aligned);
#else
#pragma unroll
        for (int i = 0; i < QUADS(BN); ++i)
#pragma unroll
          for (int e = 0; e < QUAD; ++e) {
            const int k = i * (NT / BN) * QUAD + e;
            rb[now][i][e] = (exists & (k < limit)) ? b[k * plane] : 0;
          }
#endif
        if (++tap_w == taps_w) {
          tap_w = 0;
          if (++tap_h == taps_h) {
            tap_h = 0;
            if (++tap_d == taps_d) tap_d = 0;
          }
        }
#endif
        if (FLAT || (tap_w | tap_h | tap_d) == 0) at += BK;
      }
      if (t >= AHEAD && t < steps + AHEAD) quads_multiply(as + (t + AHEAD) % 2 * (4 * BM), bs + (t + AHEAD) % 2 * (4 * BN), acc);
      if (stored >= 0 && stored < steps) {
#pragma unroll
        for (int i = 0; i < QUADS(BM); ++i) as[stored % 2 * (4 * BM) + a_to[i]] = ra[(now + 1) % AHEAD][i];
        STORE_QUADS(SOURCE_T)(bs + stored % 2 * (4 * BN), b_to, rb[(now + 1) % AHEAD], QUADS(BN), RIGHT_SCALE);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  tile_unscale(acc);
  const ulong sample_stride = splits > 1 ? (ulong)groups * rows * td * th * tw : target_stride;
  target += splits > 1 ? split * target_stride : 0;
  store_positions(acc, f, target, sample_stride, target_aligned, groups, group, row0, rows, column0, td, th, tw, bias, bias_stride, has_bias, accumulate, slope,
                  sign, sign_stride, sign_aligned, (local float*)as, reduction, backward);
}

#if DIRECTION == 0
kernel __attribute__((reqd_work_group_size(NT, 1, 1))) SUB_GROUP void forward(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const float, packed),
                                                                    REDUCTION_OPERANDS OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(RESULT_T, y),
                                                                    SIZES, int split_channels, int splits, int has_bias, int accumulate,
                                                                    float slope) {
  LOCAL_QUADS(as, 2 * 4 * BM);
  LOCAL_QUADS(bs, 2 * 4 * BN);
#if FLAT
  local int2 table[FLAT_DEPTH];
#else
  local int2* table = 0;
#endif
  gather(as, bs, table, x + x_offset, x_stride, packed + packed_offset, bias + bias_offset, bias_stride, y + y_offset, y_stride, (y_offset & 3) == 0, batch,
         groups, outputs, channels, d, h, w, od, oh, ow, split_channels, splits, has_bias, accumulate, slope, NO_SIGN(y), 0, 1, REDUCTION_ARGUMENT);
}

#else
kernel __attribute__((reqd_work_group_size(NT, 1, 1))) SUB_GROUP void backward_data(OPERAND_RESTRICT(const SOURCE_T, dy),
                                                                          OPERAND_RESTRICT(const float, packed),
                                                                          REDUCTION_OPERANDS SIGN OPERAND_RESTRICT(const float, bias),
                                                                          OPERAND_RESTRICT(RESULT_T, dx), SIZES, int split_channels,
                                                                          int splits, int has_bias, int accumulate, float slope) {
  LOCAL_QUADS(as, 2 * 4 * BM);
  LOCAL_QUADS(bs, 2 * 4 * BN);
  gather(as, bs, 0, dy + dy_offset, dy_stride, packed + packed_offset, bias + bias_offset, bias_stride, dx + dx_offset, dx_stride, (dx_offset & 3) == 0,
         batch, groups, channels, outputs, od, oh, ow, d, h, w, split_channels, splits, has_bias, accumulate, slope, IF_FUSED_RELU(sign + sign_offset, dx),
         IF_FUSED_RELU(sign_stride, 0), SIGN_ALIGNED, REDUCTION_ARGUMENT);
}

#endif
#else

/* For fetching the operands of backward_filter word by word: a work-item fetches one word, that is one or two positions, of every
   NT / 16-th line. */
#define LINES_APART (NT / WORDS)
#define LINE_PASSES(lines) ((lines) / LINES_APART)
#define WORD_PLACE(i) ((i) * LINES_APART * 16)
#define WORD_SHIFT(i) (((i) * LINES_APART >> 3 & 1) * 2 ^ ((i) * LINES_APART >> 4 & 1))

/* A position of the result: its coordinates, its sample, and its number in the batch. */
typedef struct { int x, y, z, sample, position; } Place;

INLINE Place place_at(int position, int od, int oh, int ow) {
  return (Place){position % ow, position / ow % oh, position / ow / oh % od, position / (od * oh * ow), position};
}

INLINE uint axis_bits(int first, int dilation, int taps, int size) {
  const int low = (max(0, -first) + dilation - 1) / dilation, high = min(taps, (max(0, size - first) + dilation - 1) / dilation);
  return low < high ? (1u << high) - (1u << low) : 0u;
}

kernel __attribute__((reqd_work_group_size(NT, 1, 1))) SUB_GROUP void backward_filter(OPERAND_RESTRICT(const SOURCE_T, x),
                                                                            OPERAND_RESTRICT(const GIVEN_T, dy), OPERAND_RESTRICT(RESULT_T, dw),
                                                                            SIZES, int split_positions, int accumulate) {
  LOCAL_QUADS(as, 2 * 4 * BM);
  LOCAL_QUADS(bs, 2 * 4 * BN);
  const int item = get_local_id(0);
  const int group = get_group_id(2) % groups, split = get_group_id(2) / groups;
  const int row0 = get_group_id(1) * BM, column0 = get_group_id(0) * BN;
  const int plane = d * h * w, out_plane = od * oh * ow, columns = channels * TAPS;
  const int begin = split * split_positions, end = min(batch * out_plane, begin + split_positions);
#if VECTOR
  const int x_aligned = ((x_offset | x_stride) & 3) == 0, dy_aligned = ((dy_offset | dy_stride) & 3) == 0; /* samples begin at multiples of 4 elements */
#endif
  x += x_offset + (ulong)group * channels * plane;
  dy += dy_offset + (ulong)group * outputs * out_plane;

  /* Lines past the end fetch the last one and are not stored. */
  const Share along = share_along();
  const int word_line = item / WORDS, word_to = quad_place(word_line, item % WORDS / 4) * 4 + item % 4;
#if VECTOR
  global const GIVEN_T* a_line[QUADS(BM)];
  int a_to[QUADS(BM)];
  places_of(along, QUADS(BM), a_to);
#pragma unroll
  for (int i = 0; i < QUADS(BM); ++i) a_line[i] = dy + (ulong)min(row0 + along.line + i * along.next_line, outputs - 1) * out_plane;
#endif
#if VECTOR && POINTWISE
  global const SOURCE_T* b_line[QUADS(BN)];
  int b_to[QUADS(BN)];
  places_of(along, QUADS(BN), b_to);
#pragma unroll
  for (int i = 0; i < QUADS(BN); ++i) b_line[i] = x + (ulong)min(column0 + along.line + i * along.next_line, columns - 1) * plane;
#else
  /* For each of the work-item's columns: the place of its tap relative to that of the position, and the bits of the tap. */
  int b_place[LINE_PASSES(BN)];
  uint b_bits[LINE_PASSES(BN)];
#pragma unroll
  for (int i = 0; i < LINE_PASSES(BN); ++i) {
    const int column = min(column0 + word_line + i * LINES_APART, columns - 1);
    const int tap_w = column % KERNEL_W, tap_h = column / KERNEL_W % KERNEL_H, tap_d = column / (KERNEL_W * KERNEL_H) % KERNEL_D;
    b_place[i] = ((column / TAPS * d + tap_d * DILATION_D) * h + tap_h * DILATION_H) * w + tap_w * DILATION_W;
    b_bits[i] = EXISTS | (PADDED ? BIT_W(tap_w) | BIT_H(tap_h) | BIT_D(tap_d) : 0u);
  }
#endif

  const int step_x = BK % ow, step_y = BK / ow % oh, step_z = BK / ow / oh % od, step_sample = BK / ow / oh / od;
  float acc[TM][TN];
  const int steps = (end - begin + BK - 1) / BK;
  tile_clear(acc);
#if !VECTOR || !POINTWISE
  Place word[PACK];
#pragma unroll
  for (int e = 0; e < PACK; ++e) word[e] = place_at(begin + item % WORDS * PACK + e, od, oh, ow);
#endif
#if VECTOR
  /* Four neighbouring positions belong to one sample. */
  int four[PACK], four_sample[PACK];
#pragma unroll
  for (int e = 0; e < PACK; ++e) {
    const int position = begin + along.quad * QUAD + e * 4;
    four_sample[e] = position / out_plane, four[e] = position % out_plane;
  }
  GIVEN_T ra[AHEAD][QUADS(BM)][QUAD];
#else
  GIVEN_T ra[AHEAD][LINE_PASSES(BM)][PACK];
#endif
#if VECTOR && POINTWISE
  SOURCE_T rb[AHEAD][QUADS(BN)][QUAD];
#else
  SOURCE_T rb[AHEAD][LINE_PASSES(BN)][PACK];
#endif
  for (int s = 0; s < steps + AHEAD; s += AHEAD)
#pragma unroll
    for (int now = 0; now < AHEAD; ++now) {
      const int t = s + now, stored = t - AHEAD + 1; /* t is the step to fetch, `stored` the step to store */
      if (t < steps) {
#if VECTOR
#pragma unroll
        for (int e = 0; e < PACK; ++e) {
          const int exist = end - (begin + t * BK + along.quad * QUAD + e * 4), whole = exist >= 4;
          const ulong a_at = four_sample[e] * dy_stride + four[e];
#pragma unroll
          for (int i = 0; i < QUADS(BM); ++i) {
            const VECTOR_OF(GIVEN_T, 4) v = FETCH(4, GIVEN_T)(a_line[i] + a_at, exist, whole && dy_aligned);
            ra[now][i][4 * e] = v.x, ra[now][i][4 * e + 1] = v.y, ra[now][i][4 * e + 2] = v.z, ra[now][i][4 * e + 3] = v.w;
          }
#if POINTWISE
          const ulong b_at = four_sample[e] * x_stride + four[e];
#pragma unroll
          for (int i = 0; i < QUADS(BN); ++i) {
            const VECTOR_OF(SOURCE_T, 4) v = FETCH(4, SOURCE_T)(b_line[i] + b_at, exist, whole && x_aligned);
            rb[now][i][4 * e] = v.x, rb[now][i][4 * e + 1] = v.y, rb[now][i][4 * e + 2] = v.z, rb[now][i][4 * e + 3] = v.w;
          }
#endif
          four[e] += BK;
          while (four[e] >= out_plane) four[e] -= out_plane, ++four_sample[e];
        }
#endif
#if !VECTOR || !POINTWISE
#pragma unroll
        for (int e = 0; e < PACK; ++e) {
          const Place p = word[e];
          const int exists = p.position < end;
#if !VECTOR
          global const GIVEN_T* a = dy + p.sample * dy_stride + (p.z * oh + p.y) * ow + p.x;
#pragma unroll
          for (int i = 0; i < LINE_PASSES(BM); ++i)
            ra[now][i][e] = exists ? a[(ulong)min(row0 + word_line + i * LINES_APART, outputs - 1) * out_plane] : 0;
#endif
          const int z = p.z * STRIDE_D - PAD_D, y = p.y * STRIDE_H - PAD_H, left = p.x * STRIDE_W - PAD_W;
          uint inside = exists ? EXISTS : 0u;
          if (PADDED && exists)
            inside |= axis_bits(left, DILATION_W, KERNEL_W, w) | axis_bits(y, DILATION_H, KERNEL_H, h) << KERNEL_W |
                      axis_bits(z, DILATION_D, KERNEL_D, d) << (KERNEL_W + KERNEL_H);
          global const SOURCE_T* b = x + p.sample * x_stride + (long)((z * h + y) * w + left);
#pragma unroll
          for (int i = 0; i < LINE_PASSES(BN); ++i) rb[now][i][e] = (inside & b_bits[i]) == b_bits[i] ? b[b_place[i]] : 0;

          word[e].position += BK;
          word[e].x += step_x, word[e].y += step_y, word[e].z += step_z, word[e].sample += step_sample;
          if (word[e].x >= ow) word[e].x -= ow, ++word[e].y;
          if (word[e].y >= oh) word[e].y -= oh, ++word[e].z;
          if (word[e].z >= od) word[e].z -= od, ++word[e].sample;
        }
#endif
      }
      if (t >= AHEAD && t < steps + AHEAD) quads_multiply(as + (t + AHEAD) % 2 * (4 * BM), bs + (t + AHEAD) % 2 * (4 * BN), acc);
      if (stored >= 0 && stored < steps) {
        local uint4 *a_step = as + stored % 2 * (4 * BM), *b_step = bs + stored % 2 * (4 * BN);
#if VECTOR
        STORE_QUADS(GIVEN_T)(a_step, a_to, ra[(now + 1) % AHEAD], QUADS(BM), LEFT_SCALE);
#else
#pragma unroll
        for (int i = 0; i < LINE_PASSES(BM); ++i) ((local uint*)a_step)[(word_to ^ WORD_SHIFT(i) * 4) + WORD_PLACE(i)] = WORD_OF(GIVEN_T)(ra[(now + 1) % AHEAD][i], LEFT_SCALE);
#endif
#if VECTOR && POINTWISE
        STORE_QUADS(SOURCE_T)(b_step, b_to, rb[(now + 1) % AHEAD], QUADS(BN), RIGHT_SCALE);
#else
#pragma unroll
        for (int i = 0; i < LINE_PASSES(BN); ++i) ((local uint*)b_step)[(word_to ^ WORD_SHIFT(i) * 4) + WORD_PLACE(i)] = WORD_OF(SOURCE_T)(rb[(now + 1) % AHEAD][i], RIGHT_SCALE);
#endif
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  tile_unscale(acc);

  const ulong dw_place = dw_offset + split * dw_stride + (ulong)(group * outputs + row0) * columns + column0;
  const int aligned = ((dw_place | (ulong)columns) & 3) == 0;
  tile_store(dw + dw_place, columns, outputs - row0, columns - column0, aligned, acc, accumulate, 1.0f, NO_SIGN(dw), 0, 0);
}
#endif
