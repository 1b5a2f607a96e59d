/* Products by Hopper's wgmma on channels in blocks of 8, with asynchronous copies to local memory that mbarriers count (PTX ISA 8.0, sm_90a).

   NVIDIA's OpenCL compiler refuses these instructions. They are comments here, which ocaffe/cl/open_ptx.py makes instructions in the PTX. Without the
   define WGMMA they are emulated for tests: each work-item computes its own sums from local memory, and copies are loops.

   An operand in local memory consists of core matrices of 8 x 8 elements, 128 contiguous bytes: eight pixels with 8 channels each, or eight outputs
   with 8 channels each. A descriptor names the first one and two distances in bytes (PTX ISA, "Matrix descriptor", no swizzle):
     K-major   `leading` to the next 8 of the depth, `stride` to the next 8 rows or columns
     MN-major  `leading` to the next 8 of the depth, `stride` to the next 8 rows or columns; the depth are the pixels
   So a pixel further is a descriptor 16 bytes further, and a tap of a window costs nothing.

   WGMMA  1: Hopper's instructions
   NT     columns of a product, 16, 32, 64 or 128 */
#ifndef OCAFFE_TILE_WGMMA_H
#define OCAFFE_TILE_WGMMA_H

#include "common.h"

#define WARPS 8       /* that multiply, in two groups */
#define COPIERS 128   /* work-items of a third group, which copy */
#define NT_ITEMS (WARPS * 32 + COPIERS)
#define PIXEL_BYTES 16 /* of a block of channels */

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
INLINE void copies_finish() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/* The registers of a work-item are distributed anew: 168 at the start, then 232 in the two groups that multiply and 40 in the third. */
#define TAKE_REGISTERS asm volatile("//@setmaxnreg.inc.sync.aligned.u32 232;" ::: "memory")
#define GIVE_REGISTERS asm volatile("//@setmaxnreg.dec.sync.aligned.u32 40;" ::: "memory")
/* The value of the work-item of the warp whose number differs in the bits of `mask`. */
INLINE float of_other_lane(float v, uint mask) {
  float r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(r) : "f"(v), "r"(mask));
  return r;
}
/* A barrier of the groups that multiply. */
#define BARRIER_OF_WARPS asm volatile("bar.sync 1, 256;" ::: "memory")
INLINE void products_begin() { asm volatile("//@wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void products_commit() { asm volatile("//@wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Wait until at most one committed group is in flight. */
INLINE void products_wait() { asm volatile("//@wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

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
#elif NT == 32
#define SUMS SUMS16
#define IN_OUT(d) IN_OUT16(d, 0)
#define REST "%16, %17"
#elif NT == 64
#define SUMS SUMS32
#define IN_OUT(d) IN_OUT32(d, 0)
#define REST "%32, %33"
#elif NT == 128
#define SUMS SUMS64
#define IN_OUT(d) IN_OUT64(d, 0)
#define REST "%64, %65"
#endif
#define TEXT_OF(n) TEXT_OF_(n)
#define TEXT_OF_(n) #n
#define INSTRUCTION "//@wgmma.mma_async.sync.aligned.m64n" TEXT_OF(NT) "k16.f32.bf16.bf16 {" SUMS "}, "

/* d += the product of 64 rows, 16 of the depth and NT columns, both K-major. d: see `sum_row`. */
#define MULTIPLY(d, a, b, memory) asm volatile(INSTRUCTION REST ", 1, 1, 1, 0, 0;" : IN_OUT(d) : "l"(a), "l"(b))
/* The same with both operands MN-major. */
#define MULTIPLY_PIXELS(d, a, b, memory) asm volatile(INSTRUCTION REST ", 1, 1, 1, 1, 1;" : IN_OUT(d) : "l"(a), "l"(b))
/* Wait for all products; the sums are final afterwards. */
#define FINISH(d) asm volatile("//@wgmma.wait_group.sync.aligned 0;" : IN_OUT(d)::"memory")

#else

INLINE void copy_bulk(uint to, global const void* from, uint bytes, uint bar, local uchar* memory) {
  for (uint i = 0; i < bytes; i += 4) *(local uint*)(memory + to + i) = *(global const uint*)((global const uchar*)from + i);
}
INLINE void copy_pixel(uint to, global const void* from, int exists, local uchar* memory) {
  *(local uint4*)(memory + to) = exists ? *(global const uint4*)from : (uint4)(0);
}
INLINE float local_bfloat(local const uchar* memory, uint at) { return wide(*(local const bfloat*)(memory + at)); }
/* Element (row or column mn, depth k) of an operand. */
INLINE float operand_element(local const uchar* memory, ulong d, int mn, int k, int mn_major) {
  const uint at = (uint)(d & 0x3fff) << 4, leading = (uint)(d >> 16 & 0x3fff) << 4, stride = (uint)(d >> 32 & 0x3fff) << 4;
  return local_bfloat(memory, at + mn / 8 * stride + k / 8 * leading + (mn_major ? k % 8 * 16 + mn % 8 * 2 : mn % 8 * 16 + k % 8 * 2));
}
INLINE void emulate(float* d, ulong a, ulong b, int mn_major, local const uchar* memory) {
  const int item = get_local_id(0), row = item % 128 / 32 * 16 + item % 32 / 4, column = item % 4 * 2;
  for (int j = 0; j < NT / 2; ++j)
    for (int k = 0; k < 16; ++k)
      d[j] += operand_element(memory, a, row + j / 2 % 2 * 8, k, mn_major) * operand_element(memory, b, column + j / 4 * 8 + j % 2, k, mn_major);
}
#define BARRIER_OF_WARPS barrier(CLK_LOCAL_MEM_FENCE)
#define MULTIPLY(d, a, b, memory) emulate(d, a, b, 0, memory)
#define MULTIPLY_PIXELS(d, a, b, memory) emulate(d, a, b, 1, memory)

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
  global const bfloat* x;
  ulong sample;
  int blocks, h, w, stride, phase_y, phase_x;
} Image;

/* Copy `count` virtual pixels from `begin` on, which may be negative, of `blocks` blocks of channels from `block` on. `to`: their place in local memory,
   `plane` bytes for each block. `workers` work-items copy, `worker` is the number of this one. `shares` of them share the blocks of a pixel. Neighbours copy
   neighbouring pixels. */
INLINE void copy_pixels(uint to, uint plane, const Image image, const Virtual v, int images, int block, int blocks, int begin, int count, int worker, int workers,
                        int shares, local uchar* memory) {
  const ulong pixels = image.w * image.h;
  const int each = workers / shares;
  for (int i = worker % each; i < count; i += each) {
    const Place p = place_of(v, begin + i);
    const int y = p.row * image.stride + image.phase_y, x = p.column * image.stride + image.phase_x;
    const int exists = begin + i >= 0 && p.sample < images && y < image.h && x < image.w;
    global const bfloat* from = image.x + (exists ? p.sample * image.sample + (block * pixels + y * image.w + x) * 8 : 0);
#pragma unroll 4
    for (int c = worker / each; c < blocks; c += shares) copy_pixel(to + c * plane + i * PIXEL_BYTES, from + c * pixels * 8, exists && block + c < image.blocks, memory);
  }
}

#endif
