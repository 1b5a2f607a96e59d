/* Where a slope applies when a result is written: y = passes ? v : slope * v (slope 1: nothing happens). `gated` says what decides:
   0  the value itself: a ReLU
   1  whether the element of `sign` at the same place is positive: the backward pass of the ReLU that made `sign`
   2  the same as bits (sign_mask.cl)
   An element is counted within its sample, where `sign` points. */
#ifndef OCAFFE_GATE_H
#define OCAFFE_GATE_H

#define GATE_WORD(element) ((element) / 1024 * 32 + (element) % 32)
#define GATE_BIT(element) ((element) % 1024 / 32)

#define INLINE static inline __attribute__((always_inline))

INLINE float through_gate(float v, float slope, int gated, global const float* sign, int element) {
  int passes = v > 0.0f;
  if (gated == 1) passes = sign[element] > 0.0f;
  if (gated == 2) passes = ((global const uint*)sign)[GATE_WORD(element)] >> GATE_BIT(element) & 1;
  return passes ? v : slope * v;
}

/* Four neighbours, the first a multiple of four, at an aligned place of `sign`. */
INLINE float4 through_gate4(float4 v, float slope, int gated, global const float* sign, int element) {
  int4 passes = v > 0.0f;
  if (gated == 1) passes = *(global const float4*)(sign + element) > 0.0f;
  if (gated == 2) passes = (*(global const uint4*)((global const uint*)sign + GATE_WORD(element)) >> (uint)GATE_BIT(element) & 1u) != 0u;
  return select(slope * v, v, passes);
}

/* One result, and four neighbouring ones: added to what is there or not, then through the gate. */
INLINE void put(global float* to, float v, int accumulate, float slope, int gated, global const float* sign, int element) {
  if (accumulate) v += *to;
  *to = through_gate(v, slope, gated, sign, element);
}

INLINE void put4(global float* to, float4 v, int accumulate, float slope, int gated, global const float* sign, int element) {
  if (accumulate) v += *(global float4*)to;
  *(global float4*)to = through_gate4(v, slope, gated, sign, element);
}

#endif
