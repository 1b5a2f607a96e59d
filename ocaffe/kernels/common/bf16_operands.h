/* Operands that may be bfloat16 in memory (ocaffe/passes/bf16.py). A kernel that supports this declares the operand with its own type,
   one of the defines below. The type is `float` or `bfloat`; a bfloat is bfloat16, the upper half of a float. Arithmetic is in float.

   SOURCE_T, GIVEN_T  an operand that is read, and a second one
   RESULT_T           the operand that is written or accumulated into
   SIGN_T             the mask of fused_relu.h
   NORMAL_T           the normalized input of channel_reduction.h

   GET(T, p), GET2, GET4     load one value at p, a pointer to T, or two or four neighbours; the first is at a multiple of their number
   GET8, SET8                of a block of channels (block_operands.h)
   VGET4(T, p)               load four neighbours at any place
   SET(T, p, v), SET2, SET4  store; bfloat is rounded to nearest, ties to even; NaN stays NaN */
#ifndef OCAFFE_BF16_OPERANDS_H
#define OCAFFE_BF16_OPERANDS_H

typedef ushort OWN(bfloat);
typedef ushort2 OWN(bfloat2);
typedef ushort4 OWN(bfloat4);

#ifndef SOURCE_T
#define SOURCE_T float
#endif
#ifndef RESULT_T
#define RESULT_T float
#endif
#ifndef GIVEN_T
#define GIVEN_T float
#endif
#ifndef SIGN_T
#define SIGN_T float
#endif
#ifndef NORMAL_T
#define NORMAL_T float
#endif

#define GET(T, p) GET_OF(T, p)
#define GET2(T, p) GET2_OF(T, p)
#define GET4(T, p) GET4_OF(T, p)
#define GET8(T, p) GET8_OF(T, p)
#define SET(T, p, v) SET_OF(T, p, v)
#define SET2(T, p, v) SET2_OF(T, p, v)
#define SET4(T, p, v) SET4_OF(T, p, v)
#define SET8(T, p, v) SET8_OF(T, p, v)
#define VGET4(T, p) VGET4_OF(T, p)
#define GET_OF(T, p) T##_at(p)
#define GET2_OF(T, p) T##_at2(p)
#define GET4_OF(T, p) T##_at4(p)
#define GET8_OF(T, p) T##_at8(p)
#define VGET4_OF(T, p) T##_at_any4(p)
#define SET_OF(T, p, v) T##_put(p, v)
#define SET2_OF(T, p, v) T##_put2(p, v)
#define SET4_OF(T, p, v) T##_put4(p, v)
#define SET8_OF(T, p, v) T##_put8(p, v)

/* A vector type of n elements of type T. */
#define VECTOR_OF(T, n) VECTOR_OF_(T, n)
#define VECTOR_OF_(T, n) T##n

INLINE float OWN(float_at)(global const float* p) { return *p; }
INLINE float2 OWN(float_at2)(global const float* p) { return *(global const float2*)p; }
INLINE float4 OWN(float_at4)(global const float* p) { return *(global const float4*)p; }
INLINE float8 OWN(float_at8)(global const float* p) { return *(global const float8*)p; }
INLINE float4 OWN(float_at_any4)(global const float* p) { return vload4(0, p); }
INLINE void OWN(float_put)(global float* p, float v) { *p = v; }
INLINE void OWN(float_put2)(global float* p, float2 v) { *(global float2*)p = v; }
INLINE void OWN(float_put4)(global float* p, float4 v) { *(global float4*)p = v; }
INLINE void OWN(float_put8)(global float* p, float8 v) { *(global float8*)p = v; }

/* Single values are ushorts; two and more are loaded as 32-bit words, because compilers split vectors of 16-bit elements into single loads. */
INLINE float OWN(wide)(bfloat v) { return as_float((uint)v << 16); }
INLINE float2 OWN(wide2)(uint v) { return (float2)(as_float(v << 16), as_float(v & 0xffff0000u)); }
INLINE float4 OWN(wide4)(uint2 v) { return (float4)(wide2(v.x), wide2(v.y)); }
INLINE float8 OWN(wide8)(uint4 v) { return (float8)(wide4(v.lo), wide4(v.hi)); }

#ifdef __NVPTX__
/* cvt.rn.bf16x2 requires compute capability 8. So does bfloat16 arithmetic, without which no tensor is stored as bfloat16. */
INLINE uint OWN(narrow2)(float2 v) {
  uint r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(v.y), "f"(v.x));
  return r;
}
INLINE bfloat OWN(narrow)(float v) { return (bfloat)narrow2((float2)(v, 0.0f)); }
#else
INLINE bfloat OWN(narrow)(float v) {
  const uint u = as_uint(v);
  return isnan(v) ? (bfloat)0x7fc0 : (bfloat)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
INLINE uint OWN(narrow2)(float2 v) { return (uint)narrow(v.x) | (uint)narrow(v.y) << 16; }
#endif
INLINE uint2 OWN(narrow4)(float4 v) { return (uint2)(narrow2(v.lo), narrow2(v.hi)); }
INLINE uint4 OWN(narrow8)(float8 v) { return (uint4)(narrow4(v.lo), narrow4(v.hi)); }

/* Round to the nearest TF32 number, halves away from zero, as NVIDIA's cvt.rna. */
INLINE uint OWN(tf32)(float v) { return isnan(v) ? 0x7fc00000u : (as_uint(v) + 0x1000u) & 0xffffe000u; }

INLINE float OWN(bfloat_at)(global const bfloat* p) { return wide(*p); }
INLINE float2 OWN(bfloat_at2)(global const bfloat* p) { return wide2(*(global const uint*)p); }
INLINE float4 OWN(bfloat_at4)(global const bfloat* p) { return wide4(*(global const uint2*)p); }
INLINE float8 OWN(bfloat_at8)(global const bfloat* p) { return wide8(*(global const uint4*)p); }
INLINE float4 OWN(bfloat_at_any4)(global const bfloat* p) { return (float4)(wide(p[0]), wide(p[1]), wide(p[2]), wide(p[3])); }
INLINE float8 OWN(bfloat_at_any8)(global const bfloat* p) { return (float8)(bfloat_at_any4(p), bfloat_at_any4(p + 4)); }
INLINE void OWN(bfloat_put)(global bfloat* p, float v) { *p = narrow(v); }
INLINE void OWN(bfloat_put2)(global bfloat* p, float2 v) { *(global uint*)p = narrow2(v); }
INLINE void OWN(bfloat_put4)(global bfloat* p, float4 v) { *(global uint2*)p = narrow4(v); }
INLINE void OWN(bfloat_put8)(global bfloat* p, float8 v) { *(global uint4*)p = narrow8(v); }
INLINE void OWN(bfloat_put_any4)(global bfloat* p, float4 v) {
  const uint low = narrow2(v.lo), high = narrow2(v.hi);
  p[0] = (bfloat)low, p[1] = (bfloat)(low >> 16), p[2] = (bfloat)high, p[3] = (bfloat)(high >> 16);
}

#endif
