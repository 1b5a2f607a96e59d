/* The register tile of the kernels for CPU runtimes: MR rows x NV vectors of V floats, all in registers.

   V   floats of a native vector: 4, 8 or 16
   NV  vectors side by side: a panel is NR = NV * V columns wide
   MR  rows of the tile. MR * NV accumulators, NV vectors of b and one broadcast must fit the registers (16 on AVX2, 32 on AVX-512)
   KC  depth that is summed in one pass: its panel of KC x NR floats stays in the second-level cache
   STREAM  results bypass the caches, by non-temporal stores where the compiler has the builtin. For results that are larger than the
           caches and are not accumulated into soon
   NO_PREFETCH  leave out prefetch instructions */
#ifndef OCAFFE_TILE_CPU_H
#define OCAFFE_TILE_CPU_H

#include "epilogue.h"

#ifndef V
#define V 8
#endif
#ifndef NV
#define NV 2
#endif
#ifndef MR
#define MR 6
#endif
#ifndef KC
#define KC 512
#endif
#define NR (NV * V)

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
typedef PASTE(float, V) OWN(vec);
typedef PASTE(int, V) OWN(ivec);
typedef PASTE(uint, V) OWN(uvec);

/* An unaligned vector in memory. vloadN and vstoreN would do, but PoCL assembles a wide vector from pairs, and the arithmetic between a load and
   a store is split with it. */
typedef struct __attribute__((packed)) { vec v; } OWN(unaligned);
#define GLOBAL(p) ((global unaligned*)(p))->v
#define PRIVATE(p) ((private unaligned*)(p))->v

/* The lane numbers, and half a vector. */
#if V == 16
#define LANES (ivec)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define HALF 8
#elif V == 8
#define LANES (ivec)(0, 1, 2, 3, 4, 5, 6, 7)
#define HALF 4
#else
#define LANES (ivec)(0, 1, 2, 3)
#define HALF 2
#endif
typedef PASTE(float, HALF) OWN(half_vec);
typedef struct __attribute__((packed)) { half_vec v; } OWN(unaligned_half);
#define GLOBAL_HALF(p) ((global unaligned_half*)(p))->v
#define PRIVATE_HALF(p) ((private unaligned_half*)(p))->v
typedef struct __attribute__((packed)) { float4 v; } OWN(unaligned_four);
#define GLOBAL_FOUR(p) ((global unaligned_four*)(p))->v
#define PRIVATE_FOUR(p) ((private unaligned_four*)(p))->v

/* One work-item is a work-group. vec_type_hint says that the code is already vectorised. Without it Intel's compiler tries to vectorise
   across work-items, and the kernel takes four times as long. */
#define SINGLE kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(vec)))

/* For loops that are not worth unrolling. Compilers would otherwise spend most of a build on them. */
#define ROLLED _Pragma("unroll 1")

/* acc[i][j] = sum over k < depth of A(i, k) * b[k * ld + j]; A is an expression in i and k. It uses * and +, not fma(), which is a
   library call on some runtimes; -cl-mad-enable contracts it. */
#define MULTIPLY(acc, A, b, ld, depth) MULTIPLY_AT(PRIVATE, acc, A, b, ld, depth)

/* The same with b in the address space of AT, which is GLOBAL or PRIVATE. */
#define MULTIPLY_AT(AT, acc, A, b, ld, depth) MULTIPLY_WHILE(AT, acc, A, b, ld, depth, )

/* The same with the statement `beside` in each step of the sum. */
#define MULTIPLY_WHILE(AT, acc, A, b, ld, depth, beside)                \
  do {                                                                  \
    _Pragma("unroll") for (int i = 0; i < MR; i++)                      \
      _Pragma("unroll") for (int j = 0; j < NV; j++) acc[i][j] = (vec)(0); \
    for (int k = 0; k < (depth); k++) {                                 \
      vec right_[NV];                                                   \
      beside;                                                           \
      _Pragma("unroll") for (int j = 0; j < NV; j++) right_[j] = AT((b) + k * (ld) + j * V); \
      _Pragma("unroll") for (int i = 0; i < MR; i++) {                  \
        const vec left_ = (vec)(A);                                         \
        _Pragma("unroll") for (int j = 0; j < NV; j++) acc[i][j] += left_ * right_[j]; \
      }                                                                 \
    }                                                                   \
  } while (0)

/* Prefetch a cache line into the second-level cache, or with PREFETCH(p, 3) into the first-level cache. OpenCL's prefetch() is a function
   call on CPU runtimes and costs as much as a row of the tile. */
#if defined(__has_builtin) && !defined(NO_PREFETCH)
#if __has_builtin(__builtin_prefetch)
#define PREFETCH(p, level) __builtin_prefetch((const void*)(ulong)(p), 0, level)
#endif
#endif
#ifndef PREFETCH
#define PREFETCH(p, level)
#endif
#define AHEAD(p) PREFETCH(p, 2)

/* Transpose V vectors in place. A step takes the even lanes of neighbours, then the odd ones. That rotates the bits of (vector, lane) by
   one, so log2(V) steps exchange vector and lane. */
INLINE void OWN(transpose)(vec r[V]) {
#pragma unroll
  for (int step = 1; step < V; step *= 2) {
    vec t[V];
#pragma unroll
    for (int i = 0; i < V / 2; i++) {
      t[i] = (vec)(r[2 * i].even, r[2 * i + 1].even);
      t[i + V / 2] = (vec)(r[2 * i].odd, r[2 * i + 1].odd);
    }
#pragma unroll
    for (int i = 0; i < V; i++) r[i] = t[i];
  }
}

/* to[i] = from[i] for i < count. */
INLINE void OWN(fetch)(global const float* from, float* to, int count) {
  int i = 0;
  ROLLED for (; i + V <= count; i += V) PRIVATE(to + i) = GLOBAL(from + i);
  ROLLED for (; i < count; i++) to[i] = from[i];
}

/* Write all sums of the tile to tile[i * NR + j]. */
INLINE void OWN(spill)(vec acc[MR][NV], float* tile) {
#pragma unroll
  for (int i = 0; i < MR; i++)
#pragma unroll
    for (int j = 0; j < NV; j++) PRIVATE(tile + i * NR + j * V) = acc[i][j];
}

/* Only a fence orders non-temporal stores with the other stores of a work-item, so a kernel with STREAM ends with STREAM_FENCE. */
#define STREAM_FENCE
#if defined(STREAM) && defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store) && __has_builtin(__sync_synchronize)
#define STREAMED
#undef STREAM_FENCE
#define STREAM_FENCE __sync_synchronize()
#endif
#endif

/* Write one row of sums: v = from * factor + offset (+ to), then the activation. It reads from private memory in rolled loops, because
   compilers take seconds for twenty unrolled copies. */
#define FINISH(T, P, G)                            \
  do {                                             \
    T v_ = P(from + j) * factor + offset;          \
    if (add) v_ += G(to + j);                      \
    ACTIVATE(T, v_);                               \
    G(to + j) = v_;                                \
  } while (0)
inline void OWN(finish)(const float* from, global float* to, int count, float factor, float offset, int add, ACTIVATION) {
  int j = 0;
#ifdef STREAMED
  if (count == NR && !add && (((size_t)to) & (sizeof(vec) - 1)) == 0) {
#pragma unroll
    for (; j < NR; j += V) {
      vec v = PRIVATE(from + j) * factor + offset;
      ACTIVATE(vec, v);
      __builtin_nontemporal_store(v, (global vec*)(to + j));
    }
    return;
  }
#endif
  if (count == NR) { /* the common case of a whole row; after a short sum, loops and conditions would take as long as the products */
#pragma unroll
    for (; j < NR; j += V) FINISH(vec, PRIVATE, GLOBAL);
    return;
  }
  ROLLED for (; j + V <= count; j += V) FINISH(vec, PRIVATE, GLOBAL);
#if V > 4
  ROLLED for (; j + 4 <= count; j += 4) FINISH(float4, PRIVATE_FOUR, GLOBAL_FOUR);
#endif
  ROLLED for (; j < count; j++) {
    float v = from[j] * factor + offset + (add ? to[j] : 0.0f);
    ACTIVATE(float, v);
    to[j] = v;
  }
}

/* Write the first `rows` rows of a tile to rows `step` apart. Output i gets FACTOR(bias, i), and OFFSET(bias, i) if `first`. Not inlined:
   compilers would keep its constants in registers that the products need throughout their loops. */
static __attribute__((noinline)) void OWN(finish_rows)(const float* tile, global float* to, ulong step, int rows, int count, global const float* bias,
                                           ulong bias_stride, int has_bias, int first, int add, ACTIVATION) {
  ROLLED for (int i = 0; i < rows; i++)
    finish(tile + i * NR, to + i * step, count, FACTOR(bias, i), first ? OFFSET(bias, i) : 0.0f, add, GIVEN_ACTIVATION);
}

/* The same for columns that are numbered through the batch, from q on. `y` points at output 0 of sample 0; a row of a sample has P columns. */
INLINE void OWN(finish_columns)(const float* tile, global float* y, ulong y_stride, int P, int q, int rows, int count, global const float* bias, ulong bias_stride,
                           int has_bias, int first, int add, ACTIVATION) {
  for (int j = 0, n = q / P, p = q % P, length; j < count; j += length, n++, p = 0) {
    length = min(count - j, P - p);
    finish_rows(tile + j, y + n * y_stride + p, P, rows, length, bias, bias_stride, has_bias, first, add, GIVEN_ACTIVATION);
  }
}

#define NO_BIAS 0, 0, 0, 0

#endif
