/* Products by Hopper's wgmma on channels in blocks of 8, with asynchronous copies to local memory that mbarriers count (PTX ISA 8.0, sm_90a).

   NVIDIA's OpenCL compiler refuses these instructions. They are comments here, which ocaffe/cl/open_ptx.py makes instructions in the PTX. Without the
   define WGMMA they are emulated for tests: each work-item computes its own sums from local memory, and copies are loops.

   An operand in local memory consists of core matrices of eight lines (block_operands.h), 128 contiguous bytes: eight pixels or eight outputs, with LINE
   channels each. A descriptor names the first one and two distances in bytes (PTX ISA, "Matrix descriptor", no swizzle):
     K-major   `leading` to the next line of the depth, `stride` to the next 8 rows or columns
     MN-major  `leading` to the next 8 of the depth, `stride` to the next 8 rows or columns; the depth are the pixels
   So a pixel further is a descriptor 16 bytes further in bfloat16, and a tap of a window costs nothing.

   In TF32 (BLOCK_FLOAT) wgmma would truncate what it reads from local memory, and knows no MN-major operands. The left operand, whose rows are pixels or
   channels, is therefore in registers, where it is rounded. In local memory it has whole pixels: asynchronous copies of lines to two places took twice the
   time. The right operand was rounded when it was written: packed filters, or the transposed gradients of transpose_quads.

   WGMMA  1: Hopper's instructions
   NT     columns of a product, 16, 32, 64 or 128 */
#ifndef OCAFFE_TILE_WGMMA_H
#define OCAFFE_TILE_WGMMA_H

#include "block_operands.h"

#define WARPS 8       /* that multiply, in two groups */
#define COPIERS 128   /* work-items of a third group, which copy */
#define NT_ITEMS (WARPS * 32 + COPIERS)
#define PIXEL_BYTES (8 * ELEMENT_BYTES) /* of a block of channels */
#define PRODUCT_DEPTH (2 * LINE)

/* A value that wgmma rounds to TF32: it ignores the 13 low bits. Inf and NaN stay as they are, but for a NaN that has no other bits. */
INLINE float before_truncation(float v) { return as_float(as_uint(v) + (fabs(v) < INFINITY ? 0x1000u : 0u)); }
INLINE float4 before_truncation4(float4 v) {
  return (float4)(before_truncation(v.x), before_truncation(v.y), before_truncation(v.z), before_truncation(v.w));
}

#ifdef WGMMA
#define LOCAL_ADDRESS(p) ((uint)(ulong)(p))
#else
#define LOCAL_ADDRESS(p) 0u
#endif

INLINE ulong descriptor(uint at, uint leading, uint stride) {
  return (ulong)((at & 0x3ffffu) >> 4) | (ulong)(leading >> 4) << 16 | (ulong)(stride >> 4) << 32;
}
/* The distance between two descriptors whose operands are `bytes` apart. */
#define APART(bytes) ((ulong)((bytes) >> 4))

#ifdef WGMMA

INLINE void bar_init(uint bar, uint arrivals) { asm volatile("//@mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory"); }
/* Arrive, and announce bytes that copies will write. */
INLINE void bar_expect(uint bar, uint bytes) { asm volatile("//@mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
/* Without a branch, around which ptxas would serialize the products. */
INLINE void bar_arrive(uint bar, int wanted) {
  asm volatile("//@{.reg .pred p; setp.ne.s32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(bar), "r"(wanted) : "memory");
}
/* Wait for the end of the phase with this parity. */
INLINE void bar_wait(uint bar, uint parity) {
  uint done;
  do {
    done = 0;
    asm volatile("//@{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "+r"(done) : "r"(bar), "r"(parity) : "memory");
  } while (!done);
}
INLINE void copy_bulk(uint to, global const void* from, uint bytes, uint bar, local uchar* memory) {
  asm volatile("//@cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
/* Initialize the barriers of a ring of `count` buffers: first those of full buffers, on which copiers arrive, then those of empty ones, on which the warps
   that multiply arrive. */
INLINE void bars_of_ring(uint bars, int count, uint arrivals) {
  for (int i = 0; i < count; ++i) bar_init(bars + 8 * i, arrivals), bar_init(bars + 8 * (count + i), WARPS);
}
/* Make what work-items wrote to local memory visible to bulk copies and to wgmma, which are of another proxy (PTX ISA, "Proxies"). */
INLINE void async_fence() { asm volatile("//@fence.proxy.async.shared::cta;" ::: "memory"); }
/* Copy 16 bytes, or write zeros if they do not exist. */
INLINE void copy_pixel(uint to, global const void* from, int exists, local uchar* memory) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
/* Arrive when the copies of this work-item by copy_pixel have ended. */
INLINE void bar_arrive_after_copies(uint bar) { asm volatile("//@cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
/* The copies of this work-item since its last call are a set. */
INLINE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Wait until at most `count` sets are in flight. */
#define COPIES_WAIT(count) asm volatile("cp.async.wait_group " TEXT_OF(count) ";" ::: "memory")
INLINE void copies_finish() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/* The registers of a work-item are distributed anew: 168 at the start, then `count` in the two groups that multiply, and in the third. Twice the former and
   the latter are 504 at most. */
#define TAKE_REGISTERS(count) asm volatile("//@setmaxnreg.inc.sync.aligned.u32 " TEXT_OF(count) ";" ::: "memory")
#define GIVE_REGISTERS(count) asm volatile("//@setmaxnreg.dec.sync.aligned.u32 " TEXT_OF(count) ";" ::: "memory")
/* The value of the work-item of the warp whose number differs in the bits of `mask`. */
INLINE float of_other_lane(float v, uint mask) {
  float r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(r) : "f"(v), "r"(mask));
  return r;
}
/* Barriers of the groups that multiply, of a warp, and of the `count` work-items of a team that copies. */
#define BARRIER_OF_WARPS asm volatile("bar.sync 1, 256;" ::: "memory")
#define BARRIER_OF_LANES asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")
#define BARRIER_OF_TEAM(team, count) asm volatile("bar.sync %0, " TEXT_OF(count) ";" ::"r"(2 + team) : "memory")
INLINE void products_begin() { asm volatile("//@wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void products_commit() { asm volatile("//@wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Wait until at most one committed group is in flight. */
INLINE void products_wait() { asm volatile("//@wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

#define TEXT_OF(n) TEXT_OF_(n)
#define TEXT_OF_(n) #n
#define SUMS8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SUMS16 SUMS8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS32 SUMS16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS64 SUMS32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define IN_OUT8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define IN_OUT16(d, i) IN_OUT8(d, i), IN_OUT8(d, i + 8)
#define IN_OUT32(d, i) IN_OUT16(d, i), IN_OUT16(d, i + 16)
#define IN_OUT64(d, i) IN_OUT32(d, i), IN_OUT32(d, i + 32)
#if NT == 16
#define SUMS SUMS8
#define IN_OUT(d) IN_OUT8(d, 0)
#define REST "%8, %9"
#define REST_OF_ROWS "{%8, %9, %10, %11}, %12"
#elif NT == 32
#define SUMS SUMS16
#define IN_OUT(d) IN_OUT16(d, 0)
#define REST "%16, %17"
#define REST_OF_ROWS "{%16, %17, %18, %19}, %20"
#elif NT == 64
#define SUMS SUMS32
#define IN_OUT(d) IN_OUT32(d, 0)
#define REST "%32, %33"
#define REST_OF_ROWS "{%32, %33, %34, %35}, %36"
#elif NT == 128
#define SUMS SUMS64
#define IN_OUT(d) IN_OUT64(d, 0)
#define REST "%64, %65"
#define REST_OF_ROWS "{%64, %65, %66, %67}, %68"
#endif
#ifdef BLOCK_FLOAT
#define INSTRUCTION "//@wgmma.mma_async.sync.aligned.m64n" TEXT_OF(NT) "k8.f32.tf32.tf32 {" SUMS "}, "
/* d += the product of 64 rows, 8 of the depth and NT columns. rows: a work-item's part of the left operand. b: K-major. d: see `sum_row`. */
#define MULTIPLY_ROWS(d, rows, b) \
  asm volatile(INSTRUCTION REST_OF_ROWS ", 1, 1, 1;" : IN_OUT(d) : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(b))
/* Load a work-item's part of 16 rows of pixels with eight channels. `at`: its first element (place_in_rows). Place k of the depth is channel 2 k, or
   2 k - 7 from 4 on. */
INLINE void rows_of_pixels(uint rows[4], local const uchar* at) {
  const float2 upper = *(local const float2*)at, lower = *(local const float2*)(at + 8 * PIXEL_BYTES);
  rows[0] = as_uint(before_truncation(upper.x)), rows[1] = as_uint(before_truncation(lower.x));
  rows[2] = as_uint(before_truncation(upper.y)), rows[3] = as_uint(before_truncation(lower.y));
}
/* The same for 16 rows of channels with eight pixels. Blocks of channels are `plane` bytes apart. `at`: see place_in_channels. */
INLINE void rows_of_channels(uint rows[4], local const uchar* at, int plane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) rows[i] = as_uint(before_truncation(*(local const float*)(at + i % 2 * plane + i / 2 * 4 * PIXEL_BYTES)));
}
INLINE uint place_in_rows(void) {
  const uint lane = get_local_id(0) % 32;
  return lane / 4 * PIXEL_BYTES + lane % 4 * 8;
}
INLINE uint place_in_channels(void) {
  const uint lane = get_local_id(0) % 32;
  return lane % 4 * PIXEL_BYTES + lane / 4 * 4;
}
#else
#define INSTRUCTION "//@wgmma.mma_async.sync.aligned.m64n" TEXT_OF(NT) "k16.f32.bf16.bf16 {" SUMS "}, "
/* d += the product of 64 rows, 16 of the depth and NT columns, both K-major. d: see `sum_row`. */
#define MULTIPLY(d, a, b, memory) asm volatile(INSTRUCTION REST ", 1, 1, 1, 0, 0;" : IN_OUT(d) : "l"(a), "l"(b))
/* The same with both operands MN-major. */
#define MULTIPLY_PIXELS(d, a, b, memory) asm volatile(INSTRUCTION REST ", 1, 1, 1, 1, 1;" : IN_OUT(d) : "l"(a), "l"(b))
#endif
/* Wait for all products; the sums are final afterwards. */
#define FINISH(d) asm volatile("//@wgmma.wait_group.sync.aligned 0;" : IN_OUT(d)::"memory")

#else

INLINE void copy_bulk(uint to, global const void* from, uint bytes, uint bar, local uchar* memory) {
  for (uint i = 0; i < bytes; i += 4) *(local uint*)(memory + to + i) = *(global const uint*)((global const uchar*)from + i);
}
INLINE void copy_pixel(uint to, global const void* from, int exists, local uchar* memory) {
  *(local uint4*)(memory + to) = exists ? *(global const uint4*)from : (uint4)(0);
}
/* Element (row or column mn, depth k) of an operand. */
#ifdef BLOCK_FLOAT
INLINE float operand_element(local const uchar* memory, ulong d, int mn, int k, int mn_major, int left) {
  const uint at = (uint)(d & 0x3fff) << 4, leading = (uint)(d >> 16 & 0x3fff) << 4, stride = (uint)(d >> 32 & 0x3fff) << 4;
  const uint of_left = mn_major ? mn / 8 * stride + k * PIXEL_BYTES + mn % 8 * 4 : mn * PIXEL_BYTES + (k < 4 ? 2 * k : 2 * k - 7) * 4;
  const float v = *(local const float*)(memory + at + (left ? of_left : mn / 8 * stride + k / LINE * leading + mn % 8 * 16 + k % LINE * 4));
  return as_float(as_uint(left ? before_truncation(v) : v) & 0xffffe000u);
}
#else
INLINE float operand_element(local const uchar* memory, ulong d, int mn, int k, int mn_major, int left) {
  const uint at = (uint)(d & 0x3fff) << 4, leading = (uint)(d >> 16 & 0x3fff) << 4, stride = (uint)(d >> 32 & 0x3fff) << 4;
  return wide(*(local const bfloat*)(memory + at + mn / 8 * stride + k / 8 * leading + (mn_major ? k % 8 * 16 + mn % 8 * 2 : mn % 8 * 16 + k % 8 * 2)));
}
#endif
INLINE void emulate(float* d, ulong a, ulong b, int left_mn_major, int right_mn_major, local const uchar* memory) {
  const int item = get_local_id(0), row = item % 128 / 32 * 16 + item % 32 / 4, column = item % 4 * 2;
  for (int j = 0; j < NT / 2; ++j)
    for (int k = 0; k < PRODUCT_DEPTH; ++k)
      d[j] += operand_element(memory, a, row + j / 2 % 2 * 8, k, left_mn_major, 1) * operand_element(memory, b, column + j / 4 * 8 + j % 2, k, right_mn_major, 0);
}
#define BARRIER_OF_WARPS barrier(CLK_LOCAL_MEM_FENCE)
#define BARRIER_OF_LANES barrier(CLK_LOCAL_MEM_FENCE) /* all work-items transpose */
#define MULTIPLY(d, a, b, memory) emulate(d, a, b, 0, 0, memory)
#define MULTIPLY_PIXELS(d, a, b, memory) emulate(d, a, b, 1, 1, memory)

#endif

/* Sum j of a work-item belongs to row sum_row(j) of the 64 of its group of warps, and to column sum_column(j). */
INLINE int sum_row(int j) { return (int)get_local_id(0) % 128 / 32 * 16 + (int)get_local_id(0) % 32 / 4 + j / 2 % 2 * 8; }
INLINE int sum_column(int j) { return j / 4 * 8 + (int)get_local_id(0) % 4 * 2 + j % 2; }

/* Virtual pixels: the rows of all images one after the other, `pitch` pixels each, `rows` for each image. Zeros follow the pixels of each row, and the rows
   of each image, as many as the padding. A window that begins at any pixel then finds its taps at fixed distances, over the edges of rows and images.
   `height`, `width`: of the results of the windows, which may be more or fewer than the pixels. */
typedef struct { int rows, pitch, height, width; uint by_rows, by_pitch; } Virtual;

INLINE Virtual virtual_pixels(int rows, int pitch, int height, int width) {
  return (Virtual){rows, pitch, height, width, 0xffffffffu / rows, 0xffffffffu / pitch};
}

/* Quotient and remainder of a division by d, for a < 2^31. `by`: 0xffffffff / d, with which the product is at most one too small. A division by a
   variable takes 40 instructions. */
INLINE int2 divided(int a, int d, uint by) {
  const int q = mul_hi((uint)a, by), r = a - q * d;
  return r >= d ? (int2)(q + 1, r - d) : (int2)(q, r);
}

/* The place of virtual pixel `at`: sample, row and column. */
typedef struct { int sample, row, column; } Place;
INLINE Place place_of(const Virtual v, int at) {
  const int2 line = divided(at, v.pitch, v.by_pitch), row = divided(line.x, v.rows, v.by_rows);
  return (Place){row.x, row.y, line.y};
}

/* An image in memory, w pixels wide and h high, 1 for rows that follow each other. The virtual pixel (y, x) is pixel (y * stride + phase_y, x * stride +
   phase_x) of it. It has `blocks` blocks of channels; others are 0. */
typedef struct {
  global const BLOCK_T* x;
  ulong sample;
  int blocks, h, w, stride, phase_y, phase_x;
} Image;

/* The place in an image of a virtual pixel `rows` rows further: the number of pixels from the image's start, or MISSING. */
#define MISSING 0xffffffffu
INLINE uint pixel_of(const Image image, const Place p, int rows, int images) {
  const int y = (p.row + rows) * image.stride + image.phase_y, x = p.column * image.stride + image.phase_x;
  return p.sample < images && (uint)y < (uint)image.h && (uint)x < (uint)image.w ? p.sample * (uint)(image.sample / 8) + y * image.w + x : MISSING;
}

/* The places of `count` virtual pixels from `begin` on, which may be negative. All copies of a tile use one table. */
INLINE void find_places(local uint* places, const Image image, const Virtual v, int images, int begin, int count, int worker, int workers) {
  for (int i = worker; i < count; i += workers) places[i] = begin + i < 0 ? MISSING : pixel_of(image, place_of(v, begin + i), 0, images);
}

/* Copy line `line` of a pixel, of every `step`-th of `count` blocks of channels from `block` on. Those from number `existing` on are filled with zeros, or with
   SKIP stay as they are. `to`: their place in local memory, `plane` bytes apart. */
enum { FILL, SKIP };
INLINE void copy_lines(uint to, uint plane, const Image image, uint place, int line, int block, int count, int step, int existing, int skip, local uchar* memory) {
  const ulong apart = (ulong)image.w * image.h * 8;
  const int exists = place != MISSING;
  global const BLOCK_T* from = image.x + (exists ? place : 0u) * 8ul + block * apart + line * LINE;
  to += line * 16;
#pragma unroll
  for (int c = 0; c < count; c += step, from += step * apart)
    if (skip == FILL || c < existing) copy_pixel(to + c * plane, from, exists && c < existing, memory);
}

/* Copy `count` pixels of `blocks` blocks of channels from `block` on. `to`: their place in local memory. Blocks are `plane` bytes apart. `workers` work-items
   copy, `worker` is the number of this one. Neighbours copy neighbouring lines. */
INLINE void copy_pixels(uint to, uint plane, const Image image, local const uint* places, int block, int blocks, int count, int worker, int workers,
                        local uchar* memory) {
  for (int i = worker / LINES; i < count; i += workers / LINES)
    copy_lines(to + i * PIXEL_BYTES, plane, image, places[i], worker % LINES, block, blocks, 1, image.blocks - block, FILL, memory);
}

#ifdef BLOCK_FLOAT
/* The right operand of a product whose depth are pixels: core matrices with the lines of four pixels, and 16 bytes, so that eight work-items that read or write
   together use all banks. */
#define QUAD_GAP 16
#define QUAD_BYTES (4 * PIXEL_BYTES + QUAD_GAP)

/* Replace four pixels of eight channels by eight channels of four pixels, rounded, in blocks of `count` pixels. A work-item does one half: it reads before others
   of its sub-group write. `workers` work-items do it. */
INLINE void transpose_quads(uint to, int blocks, int count, int worker, int workers, local uchar* memory) {
  const int halves = blocks * 2 * (count / 4), part = worker % 2;
  for (int i = worker; i - worker < halves; i += workers) {
    local uchar* quad = memory + to + i / 2 * QUAD_BYTES;
    float4 p[4];
    if (i < halves)
#pragma unroll
      for (int j = 0; j < 4; ++j) p[j] = before_truncation4(*(local const float4*)(quad + j * PIXEL_BYTES + part * 16));
    BARRIER_OF_LANES;
    local float4* rows = (local float4*)(quad + part * 64);
    if (i < halves) {
      rows[0] = (float4)(p[0].x, p[1].x, p[2].x, p[3].x), rows[1] = (float4)(p[0].y, p[1].y, p[2].y, p[3].y);
      rows[2] = (float4)(p[0].z, p[1].z, p[2].z, p[3].z), rows[3] = (float4)(p[0].w, p[1].w, p[2].w, p[3].w);
    }
  }
}
#endif

#endif
