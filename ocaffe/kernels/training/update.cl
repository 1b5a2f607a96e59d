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
   MOMENTUM 1 = the momentum changes from iteration to iteration (NVCaffe's momentum_policy)
   DECAY  1 = so does the weight decay (NVCaffe's weight_decay_policy): factors[2p + 1] is decay_mult alone
   ADAPTIVE each parameter's rate follows from the norms of its weights and its gradient: NVCaffe's larc with larc_policy 1 scale, 2 clip,
          3 Intel's local_lr_auto
   STEP_* words of the step buffer (ocaffe/ir/recorder.py): RATE; ITERATION with EMA; SCALE (the bias correction) with Adam and AdamW;
          MOMENTUM, DECAY

   update:   work-item (lane, block)
   local_rates: work-group of LANES per parameter -> its rate
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
#ifndef MOMENTUM
#define MOMENTUM 0
#endif
#ifndef DECAY
#define DECAY 0
#endif
#ifndef ADAPTIVE
#define ADAPTIVE 0
#endif
#ifndef STEP_RATE
#define STEP_RATE 0
#define STEP_ITERATION 1
#define STEP_SCALE 4
#endif
#ifndef STEP_MOMENTUM
#define STEP_MOMENTUM 6
#endif
#ifndef STEP_DECAY
#define STEP_DECAY 7
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
#if ADAPTIVE
                   OPERAND(const float, rates),
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
#if ADAPTIVE
  LOCATE(rates);
#endif
#if GUARD
  LOCATE(guard);
  if (guard[0]) return;
#endif
  const size_t block = get_global_id(1);
  const uint parameter = blocks[2 * block], count = blocks[2 * block + 1];
#if ADAPTIVE
  const float rate = rates[parameter];
#else
  const float rate = as_float(step[STEP_RATE]) * factors[2 * parameter];
#endif
#if DECAY
  const float decay = as_float(step[STEP_DECAY]) * factors[2 * parameter + 1];
#else
  const float decay = factors[2 * parameter + 1];
#endif
#if MOMENTUM
  momentum = as_float(step[STEP_MOMENTUM]);
#endif
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

/* rates[p]: the rate of parameter p. gradients and weights: sums of squares of the blocks; ranges[2p], ranges[2p + 1]: the parameter's first block and
   their number. The gradient counts without weight decay. share: larc_eta or local_gw_ratio. */
kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void local_rates(OPERAND(const float, gradients), OPERAND(const float, weights), OPERAND(const uint, ranges), OPERAND(const float, factors),
                 OPERAND(const uint, step), OPERAND(const float, clip), OPERAND(float, rates), float inverse_passes, float share, float weight_decay) {
  LOCATE(gradients); LOCATE(weights); LOCATE(ranges); LOCATE(factors); LOCATE(step); LOCATE(clip); LOCATE(rates);
  local float parts[LANES];
  const size_t parameter = get_global_id(1);
  const uint first = ranges[2 * parameter], count = ranges[2 * parameter + 1];
  float totals[2];
  for (int which = 0; which < 2; which++) {
    float sum = 0, lost = 0;
    for (uint i = get_local_id(0); i < count; i += LANES) {
      const float term = (which ? weights[first + i] : gradients[first + i]) - lost, next = sum + term;
      lost = (next - sum) - term;
      sum = next;
    }
#if LANES > 1
    barrier(CLK_LOCAL_MEM_FENCE); /* lane 0 has read the parts of the sum before */
#endif
    totals[which] = sum_of_lanes(parts, sum);
  }
  if (get_local_id(0) == 0) {
    const float gradient = sqrt(totals[0]) * clip[0] * inverse_passes, weight = sqrt(totals[1]);
    const float rate = as_float(step[STEP_RATE]), multiplier = factors[2 * parameter];
    float own = 1;
    if (weight > 0 && gradient > 0)
#if ADAPTIVE == 3
      own = share * weight / (gradient + weight_decay * weight);
#else
      own = (1 - as_float(step[STEP_MOMENTUM])) * share * weight / gradient;
#endif
    own = multiplier > 0 ? own : multiplier;
#if ADAPTIVE == 2
    rates[parameter] = min(rate, own);
#else
    rates[parameter] = rate * own;
#endif
  }
}
