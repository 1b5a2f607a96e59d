/* Shared by all kernels: the operand convention of docs/kernels.md, random numbers from a counter. */
#ifndef OCAFFE_COMMON_H
#define OCAFFE_COMMON_H

/* An operand: the slab, where the tensor begins in it and the distance between two samples, both in elements. */
#define OPERAND(T, x) global T* x, const ulong x##_offset, const ulong x##_stride
#define OPERAND_RESTRICT(T, x) global T* restrict x, const ulong x##_offset, const ulong x##_stride
#define LOCATE(x) x += x##_offset

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words that are a pure function of
   counter and key, so a mask can be made again at any time, in any order, on any device. */
static uint4 philox(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; round++) {
    const uint low0 = counter.x * 0xD2511F53u, high0 = mul_hi(counter.x, 0xD2511F53u);
    const uint low2 = counter.z * 0xCD9E8D57u, high2 = mul_hi(counter.z, 0xCD9E8D57u);
    counter = (uint4)(high2 ^ counter.y ^ key.x, low2, high0 ^ counter.w ^ key.y, low0);
    key += (uint2)(0x9E3779B9u, 0xBB67AE85u);
  }
  return counter;
}

/* The upper 24 bits of a random word as a float in [0, 1): every value is exact, so all devices agree. */
static float uniform01(uint word) { return (float)(word >> 8) * 0x1p-24f; }

#endif
