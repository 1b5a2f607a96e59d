/* Solver updates: all parameters of a group in one launch, with Caffe's arithmetic.

   Gradients, weights and history blobs have one layout: every parameter begins at a multiple of BLOCK elements, so a block belongs to one
   parameter. blocks[2b] is the parameter's index, blocks[2b + 1] the number of used elements of the block; factors[2p] is lr_mult,
   factors[2p + 1] weight_decay * decay_mult. The elements after the used ones are computed too and never read.

   BLOCK  elements of a block
   V      floats of a vector (16 on CPU runtimes: a work-item per block; 1 on GPUs: LANES work-items per block)
   LANES  work-items per block
   RULE   0 SGD, 1 Nesterov, 2 AdaGrad, 3 RMSProp, 4 AdaDelta, 5 Adam, 6 AdamW: Adam without weight decay in its gradient; the weights themselves decay
   L1     1 = weight decay by sign(w) instead of w
   GUARD  1 = change nothing if guard[0] is not 0 (kernels/loss/labels.cl)
   EMA    1 = keep a moving average of the weights
   STEP_* words of the step buffer (ocaffe/ir/recorder.py): RATE; ITERATION with EMA; SCALE (the bias correction) with Adam and AdamW

   update:   work-item (lane, block)
   sum_squares: work-group of LANES per block -> one partial sum per block;  clip_scale: one work-group of LANES adds them in order */
#include "common.h"
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef V
#define V 16
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef RULE
#define RULE 0
#endif
#ifndef L1
#define L1 0
#endif
#ifndef GUARD
#define GUARD 0
#endif
#ifndef EMA
#define EMA 0
#endif
#ifndef STEP_RATE
#define STEP_RATE 0
#define STEP_ITERATION 1
#define STEP_SCALE 4
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if V == 1
typedef float vec;
#define LOAD(p) (*(p))
#define STORE(v, p) (*(p) = (v))
#else
typedef JOIN(float, V) vec;
#define LOAD(p) JOIN(vload, V)(0, p)
#define STORE(v, p) JOIN(vstore, V)(v, 0, p)
#endif

/* clip[0]: factor on the summed gradients (1 if nothing is clipped); inverse_passes: 1 / iter_size */
kernel void update(OPERAND(const float, gradient), OPERAND(const uint, blocks), OPERAND(const float, factors), OPERAND(const uint, step),
                   OPERAND(const float, clip),
#if GUARD
                   OPERAND(const int, guard),
#endif
                   OPERAND(float, weight), OPERAND(float, history), OPERAND(float, history2),
#if EMA
                   OPERAND(float, average),
#endif
                   float inverse_passes, float momentum, float momentum2, float rms_decay, float delta, float ema_decay) {
  LOCATE(gradient); LOCATE(blocks); LOCATE(factors); LOCATE(step); LOCATE(clip); LOCATE(weight); LOCATE(history); LOCATE(history2);
#if EMA
  LOCATE(average);
#endif
#if GUARD
  LOCATE(guard);
  if (guard[0]) return;
#endif
  const size_t block = get_global_id(1);
  const uint parameter = blocks[2 * block], count = blocks[2 * block + 1];
  const float rate = as_float(step[STEP_RATE]) * factors[2 * parameter], decay = factors[2 * parameter + 1];
  const float scale = clip[0];
#if EMA
  const float age = (float)step[STEP_ITERATION], kept = min(ema_decay, (1 + age) / (10 + age)); /* a recently started average forgets faster */
#endif
  for (uint i = get_global_id(0) * V; i < count; i += LANES * V) {
    const size_t at = block * BLOCK + i;
    const vec w = LOAD(weight + at);
    vec g = LOAD(gradient + at) * scale * inverse_passes;
#if L1
    const vec decayed = decay * sign(w);
#else
    const vec decayed = decay * w;
#endif
#if RULE != 6
    g += decayed;
#endif
    vec h = LOAD(history + at), change;
#if RULE == 0
    h = rate * g + momentum * h;
    change = h;
#elif RULE == 1
    const vec old = h;
    h = rate * g + momentum * h;
    change = (1.0f + momentum) * h - momentum * old;
#elif RULE == 2
    h += g * g;
    change = rate * (g / (sqrt(h) + delta));
#elif RULE == 3
    h = rms_decay * h + (1.0f - rms_decay) * g * g;
    change = rate * (g / (sqrt(h) + delta));
#elif RULE == 4
    vec h2 = LOAD(history2 + at);
    h = momentum * h + (1.0f - momentum) * g * g;
    g *= sqrt((h2 + delta) / (h + delta));
    h2 = momentum * h2 + (1.0f - momentum) * g * g;
    change = rate * g;
    STORE(h2, history2 + at);
#else
    vec h2 = LOAD(history2 + at);
    h = momentum * h + (1.0f - momentum) * g;
    h2 = momentum2 * h2 + (1.0f - momentum2) * g * g;
    change = rate * as_float(step[STEP_SCALE]) * (h / (sqrt(h2) + delta));
#if RULE == 6
    change += rate * decayed;
#endif
    STORE(h2, history2 + at);
#endif
    STORE(h, history + at);
    const vec changed = w - change;
    STORE(changed, weight + at);
#if EMA
    const vec mean = LOAD(average + at);
    STORE(mean + (1 - kept) * (changed - mean), average + at);
#endif
  }
}

/* Exchange the weights and their moving average; work-items: vectors of V. */
kernel void exchange(OPERAND(float, weight), OPERAND(float, average)) {
  LOCATE(weight); LOCATE(average);
  const size_t at = get_global_id(0) * V;
  const vec w = LOAD(weight + at), mean = LOAD(average + at);
  STORE(mean, weight + at);
  STORE(w, average + at);
}

/* Return the sum of the values of a work-group's lanes, in the order of lanes; valid in lane 0. */
float sum_of_lanes(local float* parts, float value) {
#if LANES == 1
  return value;
#else
  parts[get_local_id(0)] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0;
  if (get_local_id(0) == 0)
    for (int i = 0; i < LANES; i++) sum += parts[i];
  return sum;
#endif
}

kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void sum_squares(OPERAND(const float, gradient), OPERAND(const uint, blocks), OPERAND(float, partial)) {
  LOCATE(gradient); LOCATE(blocks); LOCATE(partial);
  local float parts[LANES];
  const size_t block = get_global_id(1);
  const uint count = blocks[2 * block + 1];
  float sum = 0;
  for (uint i = get_local_id(0); i < count; i += LANES) {
    const float g = gradient[block * BLOCK + i];
    sum += g * g;
  }
  sum = sum_of_lanes(parts, sum);
  if (get_local_id(0) == 0) partial[block] = sum;
}

/* result[0]: factor on the gradients, result[1]: their L2 norm. Compensated summation, so that precision does not depend on the number of blocks. */
kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void clip_scale(OPERAND(const float, partial), OPERAND(float, result), int count, float limit) {
  LOCATE(partial); LOCATE(result);
  local float parts[LANES];
  float sum = 0, lost = 0;
  for (int i = get_local_id(0); i < count; i += LANES) {
    const float term = partial[i] - lost, next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  }
  const float norm = sqrt(sum_of_lanes(parts, sum));
  if (get_local_id(0) == 0) {
    result[0] = norm > limit ? limit / norm : 1.0f;
    result[1] = norm;
  }
}
