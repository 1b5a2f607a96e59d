/* The matrix units of tile_mfma.h, tile_wmma.h and tile_dpas.h in C, for tests on runtimes without them. This file has the makers' documented layouts and
   is not derived from the headers above: a layout that a header misunderstands gives wrong results.

   D = A B + C, with A of UNIT_M x UNIT_K, B of UNIT_K x UNIT_N, C and D of UNIT_M x UNIT_N. A lane holds a vector of elements of A and one of B.
     A_LANE(i, k), A_ELEMENT(i, k)  the lane that holds A[i][k], and the element of its vector
     B_LANE(k, j), B_ELEMENT(k, j)  the same of B[k][j]
     D_LANE(i, j), D_ELEMENT(i, j)  the lane that gets D[i][j], and the element of its vector of floats

   AMD: amd_matrix_instruction_calculator, --detail-instruction, without modifiers. V is the number of elements in a lane.
     v_mfma_f32_16x16x16f16 (cdna1 to cdna3), v_mfma_f32_16x16x16bf16_1k (cdna2, cdna3), v_mfma_f32_16x16x8bf16 (cdna1), v_mfma_f32_16x16x8_xf32 (cdna3),
       also: AMD Instinct MI200 and MI300 ISA documents, section "Matrix Arithmetic Instructions", "Dense Matrix Multiplication Layouts"
     v_wmma_f32_16x16x16_f16 and _bf16 (rdna3, rdna4), wave32; also: RDNA 3 and RDNA 4 ISA documents, section "Wave Matrix Multiply Accumulate (WMMA)";
       gpuopen.com/learn/wmma_on_rdna3
   Intel: Khronos' registry, cl_intel_subgroup_matrix_multiply_accumulate 1.1.0, section 6.13.X, and .._tf32 1.0.0, section 6.13.X.Y: lanes with numbers
     below K hold the even rows of a, the others the odd ones.
   docs/matrix-units.md tells which of these texts were compared with this file: those of gfx12 were not. */
#ifndef OCAFFE_EMULATED_UNIT_H
#define OCAFFE_EMULATED_UNIT_H

#if defined(OCAFFE_TILE_MFMA_H)
#define UNIT_M 16
#define UNIT_N 16
#define V (MMA == 1 ? LANE_WORDS : 2 * LANE_WORDS)
#define UNIT_K (4 * V)
#define A_LANE(i, k) (16 * ((k) / V) + (i))
#define A_ELEMENT(i, k) ((k) % V)
#define B_LANE(k, j) (16 * ((k) / V) + (j))
#define B_ELEMENT(k, j) ((k) % V)
#define D_LANE(i, j) (16 * ((i) / 4) + (j))
#define D_ELEMENT(i, j) ((i) % 4)
#elif defined(OCAFFE_TILE_WMMA_H)
#define UNIT_M 16
#define UNIT_N 16
#define UNIT_K 16
#if LANE_WORDS == 8 /* RDNA 3: a lane reads the copy of its own half of the wave */
#define A_LANE(i, k) ((i) + get_local_id(0) % 32 / 16 * 16)
#define A_ELEMENT(i, k) (k)
#define B_LANE(k, j) ((j) + get_local_id(0) % 32 / 16 * 16)
#define B_ELEMENT(k, j) (k)
#define D_LANE(i, j) (16 * ((i) % 2) + (j))
#define D_ELEMENT(i, j) ((i) / 2)
#else /* RDNA 4: register 2 (k / 8) + k / 2 % 2 */
#define A_LANE(i, k) (16 * ((k) / 4 % 2) + (i))
#define A_ELEMENT(i, k) (2 * (2 * ((k) / 8) + (k) / 2 % 2) + (k) % 2)
#define B_LANE(k, j) (16 * ((k) / 4 % 2) + (j))
#define B_ELEMENT(k, j) (2 * (2 * ((k) / 8) + (k) / 2 % 2) + (k) % 2)
#define D_LANE(i, j) (16 * ((i) / 8) + (j))
#define D_ELEMENT(i, j) ((i) % 8)
#endif
#else
#define UNIT_M 8
#define UNIT_N WAVE
#define B_LANE(k, j) (j)
#define B_ELEMENT(k, j) (k)
#define D_LANE(i, j) (j)
#define D_ELEMENT(i, j) (i)
#if MMA == 1
#define UNIT_K 8
#define A_LANE(i, k) ((i) % 2 * 8 + (k))
#define A_ELEMENT(i, k) ((i) / 2)
#else
#define UNIT_K 16
#define A_LANE(i, k) ((k) / (16 / WAVE))
#define A_ELEMENT(i, k) ((i) * (16 / WAVE) + (k) % (16 / WAVE))
#endif
#endif

/* Return element `e` of a vector of 16-bit elements, or floats in TF32. */
INLINE float vector_element(local const uint* words, int e) {
#if MMA == 1
  return as_float(words[e]);
#elif MMA == 2
  return as_float((uint)((local const ushort*)words)[e] << 16);
#else
  return vload_half(e, (local const half*)words);
#endif
}

/* d += A B for one lane. All lanes of the work-group call this together. Each has 16 words of `exchange`: eight for A, eight for B. */
INLINE void emulate(const uint* a, int a_words, const uint* b, int b_words, float* d, local uint* exchange) {
  const int lane = get_local_id(0) % WAVE;
  local uint* own = exchange + get_local_id(0) * 16;
  local const uint* wave = exchange + get_local_id(0) / WAVE * WAVE * 16;
  for (int w = 0; w < a_words; ++w) own[w] = a[w];
  for (int w = 0; w < b_words; ++w) own[8 + w] = b[w];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < UNIT_M; ++i)
    for (int j = 0; j < UNIT_N; ++j) {
      if (D_LANE(i, j) != lane) continue;
      float sum = 0.0f;
      for (int k = 0; k < UNIT_K; ++k)
        sum += vector_element(wave + A_LANE(i, k) * 16, A_ELEMENT(i, k)) * vector_element(wave + B_LANE(k, j) * 16 + 8, B_ELEMENT(k, j));
      d[D_ELEMENT(i, j)] += sum;
    }
  barrier(CLK_LOCAL_MEM_FENCE);
}

#endif
