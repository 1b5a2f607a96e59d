/* Convolution with windows of one pixel and stride 1, in bfloat16 on NVIDIA's tensor cores. Each sample is a matrix product. Operands are
   copied to local memory unchanged (tile_async.h), because memory bandwidth limits such layers.

   pack             packed[output][channel] = the filters in bfloat16
   forward          y[output][position]   = sum over channels of packed * x        left operand: layout `along`; right one: `across`
   backward_data    dx[channel][position] = sum over outputs of packed' * dy       both `across`
   backward_filter  dw[output][channel]   = sum over (sample, position) of dy * x  both `along`
   split_sum        the second pass of a product whose depth was split (split_sum.h)

   Defines: the tile, STAGES, A_ACROSS, B_ACROSS (tile_async.h); the window (conv_window.h), for the epilogue.
   DIRECTION  the kernel that the program has besides pack and split_sum: 0 forward, 1 backward_data, 2 backward_filter
   WIDE       elements of a copy, 8 or 4; planes have a multiple of WIDE positions. If samples do not begin at multiples of WIDE (a view of a
              Concat), elements are loaded singly
   SOURCE_T, GIVEN_T  may also be float; then operands are rounded on their way, without asynchronous copies

   Arguments: operands, SIZES (conv_window.h), channels of a part and number of parts (backward_filter: positions of a part), scalars.
   Group (x, y, z): tiles of columns, tiles of rows, groups of channels and parts of the depth. Channels of a group, and in backward outputs
   of a group, are multiples of 8. In a step work-item i copies chunks i, i + NT, ... of each operand; the chunks of a line are neighbours. */
#include "common.h"
#include "conv_window.h"
#include "epilogue.h"
#include "channel_reduction.h"
#include "split_sum.h"
#include "tile_async.h"
#define PLANES_OF_FOURS 1 /* multiples of WIDE */
#include "conv_store.h"

#ifndef DIRECTION
#define DIRECTION 0
#endif
#ifndef WIDE
#define WIDE 8
#endif

#define PIECES (CHUNK / WIDE)
#define A_CHUNKS (BM * BK / CHUNK) /* in one step */
#define B_CHUNKS (BN * BK / CHUNK)
#define A_SHARE (A_CHUNKS / NT)
#define B_SHARE (B_CHUNKS / NT)

/* Copy a chunk to local memory from the places of its pieces. */
#define STAGE(T) JOINED(stage_, T)
INLINE void stage_bfloat(local uint4* to, global const bfloat* const from[PIECES], const int exist[PIECES], int aligned) {
  if (aligned) {
#if WIDE == 8
    copy_8(to, from[0], exist[0]);
#else
    copy_4((local uint2*)to, from[0], exist[0]);
    copy_4((local uint2*)to + 1, from[1], exist[1]);
#endif
  } else {
    uint v[CHUNK / 2];
#pragma unroll
    for (int e = 0; e < CHUNK / 2; ++e) {
      const int piece = 2 * e / WIDE, at = 2 * e % WIDE;
      v[e] = exist[piece] ? (uint)from[piece][at] | (uint)from[piece][at + 1] << 16 : 0u;
    }
    *to = (uint4)(v[0], v[1], v[2], v[3]);
  }
}

INLINE void stage_float(local uint4* to, global const float* const from[PIECES], const int exist[PIECES], int aligned) {
  float4 v[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int piece = 4 * e / WIDE, at = 4 * e % WIDE;
    v[e] = (float4)(0.0f);
    if (exist[piece]) v[e] = aligned ? float_at4(from[piece] + at) : float_at_any4(from[piece] + at);
  }
  *to = narrow8((float8)(v[0], v[1]));
}

/* The software pipeline: first steps 0 .. STAGES - 2 are fetched, then step t + STAGES - 1 while step t is multiplied.
   fetch(step, stage of local memory). */
#define PIPELINE(steps, fetch)                                                                   \
  int stage = 0, next = STAGES - 1;                                                              \
  _Pragma("unroll") for (int t = 0; t < STAGES - 1; ++t) {                                       \
    if (t < (steps)) fetch(t, t);                                                                \
    copies_commit();                                                                             \
  }                                                                                              \
  for (int t = 0; t < (steps); ++t) {                                                            \
    copies_wait();                                                                               \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                \
    if (t + STAGES - 1 < (steps)) fetch(t + STAGES - 1, next);                                   \
    copies_commit();                                                                             \
    chunks_multiply(as + stage * A_CHUNKS, bs + stage * B_CHUNKS, acc);                          \
    stage = stage + 1 == STAGES ? 0 : stage + 1, next = next + 1 == STAGES ? 0 : next + 1;       \
  }                                                                                              \
  barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
  tile_deal(acc)

kernel void pack(OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(float, packed), int count) {
  const int i = get_global_id(0);
  if (i >= count) return;
  filter += filter_offset + (ulong)i * CHUNK;
  ((global uint4*)(packed + packed_offset))[i] = narrow8((float8)(float_at_any4(filter), float_at_any4(filter + 4)));
}

#if DIRECTION < 2
/* The columns are positions of all samples of x. `depth` planes of x are summed for each of the `rows` planes of y. */
INLINE void gather(local uint4* as, local uint4* bs, global const SOURCE_T* x, ulong x_stride, int aligned, global const bfloat* packed,
                   global const float* bias, ulong bias_stride, global RESULT_T* y, ulong y_stride, int y_aligned, int batch, int groups, int rows, int depth, int d,
                   int h, int w, int split_depth, int splits, int has_bias, int accumulate, float slope, global const SIGNS_T* sign,
                   ulong sign_stride, int sign_aligned, const ChannelReduction reduction) {
  const int item = get_local_id(0), plane = d * h * w;
  const int group = get_group_id(2) % groups, split = get_group_id(2) / groups;
  const int column0 = get_group_id(0) * BN, row0 = get_group_id(1) * BM;
  const int begin = split * split_depth, end = min(depth, begin + split_depth);
  const Phase f = phase_of(0, 0, batch, d, h, w);

  /* Filters: rows past the end fetch the last ones and are not stored. */
#if A_ACROSS
  const int a_chunk = item % (BM / CHUNK), a_depth = item / (BM / CHUNK), a_to = across_place(BM, a_depth, a_chunk);
  packed += ((ulong)group * depth + begin + a_depth) * rows + min(row0 + a_chunk * CHUNK, rows - CHUNK);
#else
  const int a_line = item / (BK / CHUNK), a_depth = item % (BK / CHUNK) * CHUNK, a_to = along_place(BK, a_line, a_depth / CHUNK);
  packed += (ulong)group * rows * depth + begin + a_depth;
  int a_from[A_SHARE];
#pragma unroll
  for (int i = 0; i < A_SHARE; ++i) a_from[i] = min(row0 + a_line + i * (NT * CHUNK / BK), rows - 1) * depth;
#endif

  /* The image: columns past the end fetch the last ones and are not stored. */
  const int b_chunk = item % (BN / CHUNK), b_depth = item / (BN / CHUNK), b_to = across_place(BN, b_depth, b_chunk);
  x += ((ulong)group * depth + begin + b_depth) * plane;
  global const SOURCE_T* b_from[PIECES];
#pragma unroll
  for (int p = 0; p < PIECES; ++p) {
    const int column = min(column0 + b_chunk * CHUNK + p * WIDE, f.columns - WIDE);
    b_from[p] = x + column / plane * x_stride + column % plane;
  }

  float acc[TM][TN];
  tile_clear(acc);
  const int steps = (end - begin + BK - 1) / BK;
#define FETCH_STEP(t, stage)                                                                                                                           \
  do {                                                                                                                                                 \
    const int left = end - begin - (t) * BK; /* remaining depth */                                                                                        \
    _Pragma("unroll") for (int i = 0; i < A_SHARE; ++i) {                                                                                              \
      local uint4* to = as + (stage) * A_CHUNKS + a_to + i * NT;                                                                                       \
      copy_8(to, packed + A_AT(t, i), A_DEPTH(i) < left);                                                                                              \
    }                                                                                                                                                  \
    _Pragma("unroll") for (int i = 0; i < B_SHARE; ++i) {                                                                                              \
      const int k = b_depth + i * (NT * CHUNK / BN), exists = k < left;                                                                                \
      global const SOURCE_T* from[PIECES];                                                                                                             \
      int exist[PIECES];                                                                                                                               \
      _Pragma("unroll") for (int p = 0; p < PIECES; ++p) from[p] = b_from[p] + (long)((t) * BK + i * (NT * CHUNK / BN)) * plane, exist[p] = exists;    \
      STAGE(SOURCE_T)(bs + (stage) * B_CHUNKS + b_to + i * NT, from, exist, aligned);                                                                  \
    }                                                                                                                                                  \
  } while (0)
#if A_ACROSS
#define A_AT(t, i) ((long)((t) * BK + (i) * (NT * CHUNK / BM)) * rows)
#define A_DEPTH(i) (a_depth + (i) * (NT * CHUNK / BM))
#else
#define A_AT(t, i) (a_from[i] + (t) * BK)
#define A_DEPTH(i) a_depth
#endif
  PIPELINE(steps, FETCH_STEP);

  const ulong sample_stride = splits > 1 ? (ulong)groups * rows * plane : y_stride;
  y += splits > 1 ? split * y_stride : 0;
  store_positions(acc, f, y, sample_stride, y_aligned, groups, group, row0, rows, column0, d, h, w, bias, bias_stride, has_bias, accumulate, slope, sign, sign_stride,
                  sign_aligned, (local float*)as, reduction, 0);
}

#if DIRECTION == 0
kernel GROUP_OF_NT void forward(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const float, packed),
                                                                    REDUCTION_OPERANDS OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(RESULT_T, y),
                                                                    SIZES, int split_channels, int splits, int has_bias, int accumulate,
                                                                    float slope) {
  LOCAL_CHUNKS(as, STAGES * A_CHUNKS);
  LOCAL_CHUNKS(bs, STAGES * B_CHUNKS);
  gather(as, bs, x + x_offset, x_stride, ((x_offset | x_stride) & (WIDE - 1)) == 0, (global const bfloat*)(packed + packed_offset), bias + bias_offset,
         bias_stride, y + y_offset, y_stride, (y_offset & 3) == 0, batch, groups, outputs, channels, d, h, w, split_channels, splits, has_bias, accumulate, slope,
         NO_SIGN(y), 0, 1, REDUCTION_ARGUMENT);
}
#else
kernel GROUP_OF_NT void backward_data(OPERAND_RESTRICT(const SOURCE_T, dy), OPERAND_RESTRICT(const float, packed),
                                                                          REDUCTION_OPERANDS SIGN OPERAND_RESTRICT(const float, bias),
                                                                          OPERAND_RESTRICT(RESULT_T, dx), SIZES, int split_channels, int splits,
                                                                          int has_bias, int accumulate, float slope) {
  LOCAL_CHUNKS(as, STAGES * A_CHUNKS);
  LOCAL_CHUNKS(bs, STAGES * B_CHUNKS);
  gather(as, bs, dy + dy_offset, dy_stride, ((dy_offset | dy_stride) & (WIDE - 1)) == 0, (global const bfloat*)(packed + packed_offset), bias + bias_offset,
         bias_stride, dx + dx_offset, dx_stride, (dx_offset & 3) == 0, batch, groups, channels, outputs, d, h, w, split_channels, splits, has_bias, accumulate,
         slope, IF_FUSED_RELU(sign + sign_offset, dx), IF_FUSED_RELU(sign_stride, 0), SIGN_ALIGNED, REDUCTION_ARGUMENT);
}
#endif
#else

kernel GROUP_OF_NT void backward_filter(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const GIVEN_T, dy), OPERAND_RESTRICT(RESULT_T, dw), SIZES,
                                        int split_positions, int accumulate) {
  LOCAL_CHUNKS(as, STAGES * A_CHUNKS);
  LOCAL_CHUNKS(bs, STAGES * B_CHUNKS);
  const int item = get_local_id(0), plane = d * h * w;
  const int group = get_group_id(2) % groups, split = get_group_id(2) / groups;
  const int row0 = get_group_id(1) * BM, column0 = get_group_id(0) * BN;
  const int begin = split * split_positions, end = min(batch * plane, begin + split_positions);
  const int x_aligned = ((x_offset | x_stride) & (WIDE - 1)) == 0, dy_aligned = ((dy_offset | dy_stride) & (WIDE - 1)) == 0;
  x += x_offset + (ulong)group * channels * plane;
  dy += dy_offset + (ulong)group * outputs * plane;

  /* Lines past the end fetch the last one and are not stored. */
  const int line = item / (BK / CHUNK), to = along_place(BK, line, item % (BK / CHUNK));
  int a_line[A_SHARE], b_line[B_SHARE];
#pragma unroll
  for (int i = 0; i < A_SHARE; ++i) a_line[i] = min(row0 + line + i * (NT * CHUNK / BK), outputs - 1) * plane;
#pragma unroll
  for (int i = 0; i < B_SHARE; ++i) b_line[i] = min(column0 + line + i * (NT * CHUNK / BK), channels - 1) * plane;
  int position[PIECES], sample[PIECES], at[PIECES]; /* of the next step to fetch: the position in the batch, and the same as a sample and a position in the plane */
#pragma unroll
  for (int p = 0; p < PIECES; ++p)
    position[p] = begin + item % (BK / CHUNK) * CHUNK + p * WIDE, sample[p] = position[p] / plane, at[p] = position[p] % plane;

  float acc[TM][TN];
  tile_clear(acc);
  const int steps = (end - begin + BK - 1) / BK;
#define FETCH_STEP(t, stage)                                                                                                                   \
  do {                                                                                                                                         \
    int exist[PIECES];                                                                                                                         \
    _Pragma("unroll") for (int p = 0; p < PIECES; ++p) exist[p] = position[p] < end;                                                           \
    _Pragma("unroll") for (int i = 0; i < A_SHARE; ++i) {                                                                                      \
      global const GIVEN_T* from[PIECES];                                                                                                      \
      _Pragma("unroll") for (int p = 0; p < PIECES; ++p) from[p] = dy + (sample[p] * dy_stride + at[p] + a_line[i]);                           \
      STAGE(GIVEN_T)(as + (stage) * A_CHUNKS + to + i * NT, from, exist, dy_aligned);                                                          \
    }                                                                                                                                          \
    _Pragma("unroll") for (int i = 0; i < B_SHARE; ++i) {                                                                                      \
      global const SOURCE_T* from[PIECES];                                                                                                     \
      _Pragma("unroll") for (int p = 0; p < PIECES; ++p) from[p] = x + (sample[p] * x_stride + at[p] + b_line[i]);                             \
      STAGE(SOURCE_T)(bs + (stage) * B_CHUNKS + to + i * NT, from, exist, x_aligned);                                                          \
    }                                                                                                                                          \
    _Pragma("unroll") for (int p = 0; p < PIECES; ++p) {                                                                                       \
      position[p] += BK, at[p] += BK;                                                                                                          \
      while (at[p] >= plane) at[p] -= plane, ++sample[p];                                                                                      \
    }                                                                                                                                          \
  } while (0)
  PIPELINE(steps, FETCH_STEP);

  const ulong dw_place = dw_offset + split * dw_stride + (ulong)(group * outputs + row0) * channels + column0;
  const int aligned = ((dw_place | (ulong)channels) & 3) == 0;
  tile_store(dw + dw_place, channels, outputs - row0, channels - column0, aligned, acc, accumulate, 1.0f, NO_SIGN(dw), 0, 0);
}
#endif
