/* Kernels along the axis of classes (see softmax.h): Softmax, SoftmaxWithLoss, Accuracy, forward and backward, in one program.
 *
 * GROUP          work-items of a group, a power of two
 * DEVICE_FENCE   last-block reduction (common.h); otherwise a launch of `total` adds the parts
 *
 * Work-items: a group works on GROUP / lanes neighbouring positions at a time, with `lanes` work-items (a power of two) for each. Maps have
 * one lane, as their positions are contiguous in memory (on GPUs; CPUs use softmax_cpu.cl). inner = 1 has many, as its classes are.
 * Groups take tiles of positions in turn. The order of sums is fixed: lanes as a tree, tiles one after another, then groups.
 */
#include "softmax.h"

#ifndef GROUP
#define GROUP 64
#endif

float max_of_lanes(const float value, local float* buffer, const int width) {
  const int id = get_local_id(0);
  buffer[id] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int apart = GROUP / 2; apart >= width; apart /= 2) {
    if (id < apart) buffer[id] = max(buffer[id], buffer[id + apart]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float result = buffer[id & (width - 1)];
  barrier(CLK_LOCAL_MEM_FENCE);
  return result;
}

float sum_of_lanes(const float value, local float* buffer, const int width) {
  const int id = get_local_id(0);
  buffer[id] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int apart = GROUP / 2; apart >= width; apart /= 2) {
    if (id < apart) buffer[id] += buffer[id + apart];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float result = buffer[id & (width - 1)];
  barrier(CLK_LOCAL_MEM_FENCE);
  return result;
}

/* Compute this lane's share of the probabilities of one position; return the lane's first one. Called by the whole group; `in`: the position
 * exists. A lane reads and writes the same elements, so that y may be x. The first stays in a register; with few classes it is the only one. */
float softmax_of_position(global const float* x, global float* y, const bool in, const int classes, const ulong x_step, const ulong y_step,
                         const int lane, const int lanes, local float* buffer) {
  const int end = in ? classes : 0;
  const float score = lane < end ? x[lane * x_step] : -INFINITY;
  float top = score;
  for (int c = lane + lanes; c < end; c += lanes) top = max(top, x[c * x_step]);
  top = max_of_lanes(top, buffer, GROUP / lanes);
  const float first = lane < end ? exp(score - top) : 0.0f;
  float sum = first;
  for (int c = lane + lanes; c < end; c += lanes) {
    const float e = exp(x[c * x_step] - top);
    y[c * y_step] = e;
    sum += e;
  }
  sum = sum_of_lanes(sum, buffer, GROUP / lanes);
  if (lane < end) y[lane * y_step] = first / sum;
  for (int c = lane + lanes; c < end; c += lanes) y[c * y_step] /= sum;
  return first / sum;
}

#define WIDTH (GROUP / lanes)
#define LANE ((int)get_local_id(0) / WIDTH)
#define POSITION(tile) ((int)(tile) * WIDTH + (int)(get_local_id(0) & (WIDTH - 1)))

kernel void softmax(OPERAND(const float, x), OPERAND(float, y), const int positions, const int classes, const int inner, const int mid,
                    const int lanes) {
  LOCATE(x);
  LOCATE(y);
  local float buffer[GROUP];
  const int p = POSITION(get_group_id(0));
  softmax_of_position(SCORES(x, p), SCORES(y, p), p < positions, classes, STEP(x), STEP(y), LANE, lanes, buffer);
}

/* dx = y (dy - sum(dy y)); dx may be dy. */
kernel void softmax_backward(OPERAND(const float, y), OPERAND(const float, dy), OPERAND(float, dx), const int positions, const int classes,
                             const int inner, const int mid, const int lanes, const int accumulate) {
  LOCATE(y);
  LOCATE(dy);
  LOCATE(dx);
  local float buffer[GROUP];
  const int p = POSITION(get_group_id(0)), lane = LANE, end = p < positions ? classes : 0;
  global const float *yp = SCORES(y, p), *dyp = SCORES(dy, p);
  global float* dxp = SCORES(dx, p);
  const ulong y_step = STEP(y), dy_step = STEP(dy), dx_step = STEP(dx);
  float dot = 0;
  for (int c = lane; c < end; c += lanes) dot += dyp[c * dy_step] * yp[c * y_step];
  dot = sum_of_lanes(dot, buffer, WIDTH);
  for (int c = lane; c < end; c += lanes) {
    const float d = yp[c * y_step] * (dyp[c * dy_step] - dot);
    dxp[c * dx_step] = accumulate ? dxp[c * dx_step] + d : d;
  }
}

/* Finish a sum in the whole group: sums[group] = (sum, counted). A single group also writes the result. */
void finish(const float sum, const float counted, global float* sums, const int group, global float* result, const int groups, const float fixed,
            local float* buffer) {
  const float s = sum_of_lanes(sum, buffer, 1), n = sum_of_lanes(counted, buffer, 1);
  if (get_local_id(0) == 0) {
    sums[2 * group] = s;
    sums[2 * group + 1] = n;
    if (groups == 1) *result = s / divisor(fixed, n);
  }
}

/* Add the (sum, counted) of all groups and write the result; called by one group. */
void add_up(global const float* parts, global float* sums, global float* result, const int groups, const float fixed, local float* buffer) {
  float sum = 0, counted = 0;
  for (int g = get_local_id(0); g < groups; g += GROUP) {
    sum += parts[2 * g];
    counted += parts[2 * g + 1];
  }
  finish(sum, counted, sums, 0, result, 1, fixed, buffer);
}

#ifdef DEVICE_FENCE
#define FINISH(result)                                                                      \
  LOCATE(counters), LOCATE(parts);                                                           \
  const int groups = get_num_groups(0);                                                     \
  local int vote;                                                                           \
  finish(sum, counted, parts, get_group_id(0), result, 0, fixed, buffer);                   \
  IS_LAST_BLOCK(DEVICE_FENCE, counters, groups, &vote, last);                                       \
  if (last) add_up(parts, sums, result, groups, fixed, buffer)
#else
#define FINISH(result) finish(sum, counted, sums, get_group_id(0), result, get_num_groups(0), fixed, buffer)

kernel void total(OPERAND(const float, parts), OPERAND(float, sums), OPERAND(float, result), const int groups, const float fixed) {
  LOCATE(parts);
  LOCATE(sums);
  LOCATE(result);
  local float buffer[GROUP];
  add_up(parts, sums, result, groups, fixed, buffer);
}
#endif

/* prob = softmax(x); loss = sum(-log(prob[label])) / divisor over positions whose label is not ignored. A label outside of the classes makes
 * the loss NaN. prob may be x. `smoothing`: the share of the target that is distributed evenly over all classes. */
kernel void softmax_loss(OPERAND(const float, x), OPERAND(const float, label), COMPLETION_COUNTER_OPERAND OPERAND(float, prob), OPERAND(float, sums),
                         OPERAND(float, loss) PARTS, const int positions, const int classes, const int inner, const int mid, const int lanes,
                         const float fixed, const int label_run, const int has_ignore, const int ignore, const float smoothing) {
  LOCATE(x);
  LOCATE(label);
  LOCATE(prob);
  LOCATE(sums);
  LOCATE(loss);
  local float buffer[GROUP];
  const int lane = LANE;
  const ulong step = STEP(prob);
  float sum = 0, counted = 0;
  for (int tile = get_group_id(0); tile * WIDTH < positions; tile += get_num_groups(0)) {
    const int p = POSITION(tile);
    global float* y = SCORES(prob, p);
    const float wanted = p < positions ? label[label_at(p, label_run, label_stride)] : 0;
    const float first = softmax_of_position(SCORES(x, p), y, p < positions, classes, STEP(x), step, lane, lanes, buffer);
    if (p < positions && !(has_ignore && (int)wanted == ignore)) {
      if (outside(wanted, classes)) sum = NAN;
      else if ((int)wanted % lanes == lane) sum -= (1 - smoothing) * log_of((int)wanted == lane ? first : y[(int)wanted * step]);
      for (int c = lane; smoothing > 0 && c < classes; c += lanes) sum -= smoothing / classes * log_of(y[c * step]);
      counted += lane == 0;
    }
  }
  FINISH(loss);
}

/* dx = (prob - target) * weight / divisor, 0 where the label is ignored; target = (1 - smoothing) [class is label] + smoothing / classes.
 * Work-items: (inner, mid * classes, samples) for maps, (classes, mid, samples) for inner = 1, (inner, samples, 1) for the batch axis. */
kernel void softmax_loss_backward(OPERAND(const float, prob), OPERAND(const float, label), OPERAND(const float, sums),
                                  OPERAND(const float, weight), OPERAND(float, dx), const int classes, const int inner, const int mid,
                                  const int label_run, const int has_ignore, const int ignore, const float smoothing, const float fixed,
                                  const int accumulate) {
  LOCATE(prob);
  LOCATE(label);
  LOCATE(sums);
  LOCATE(weight);
  LOCATE(dx);
  const int i = get_global_id(0), row = get_global_id(1), sample = mid ? get_global_id(2) : row;
  if (i >= (inner == 1 && mid ? classes : inner)) return;
  int c, p;
  ulong at;
  if (mid == 0) {
    c = row;
    p = i;
    at = i;
  } else if (inner == 1) {
    c = i;
    p = sample * mid + row;
    at = (ulong)row * classes + i;
  } else {
    c = row % classes;
    p = (sample * mid + row / classes) * inner + i;
    at = (ulong)row * inner + i;
  }
  const float wanted = label[mid ? sample * label_stride + (p - sample * label_run) : label_at(p, label_run, label_stride)];
  const float scale = *weight / divisor(fixed, sums[1]);
  const float target = (c == (int)wanted ? 1 - smoothing : 0) + smoothing / classes;
  const float d = has_ignore && (int)wanted == ignore ? 0 : (prob[sample * prob_stride + at] - target) * scale;
  dx += sample * dx_stride + at;
  *dx = accumulate ? *dx + d : d;
}

/* The share of the positions whose label is among the top_k scores; equal scores (and NaN) count against it. hits: 1, 0, or -1 where the
 * position does not count. A label outside of the classes makes the result NaN. */
kernel void accuracy(OPERAND(const float, x), OPERAND(const float, label), COMPLETION_COUNTER_OPERAND OPERAND(char, hits), OPERAND(float, sums),
                     OPERAND(float, result) PARTS, const int positions, const int classes, const int inner, const int mid, const int lanes,
                     const float fixed, const int label_run, const int has_ignore, const int ignore, const int top_k) {
  LOCATE(x);
  LOCATE(label);
  LOCATE(hits);
  LOCATE(sums);
  LOCATE(result);
  local float buffer[GROUP];
  const int lane = LANE;
  const ulong step = STEP(x);
  float sum = 0, counted = 0;
  for (int tile = get_group_id(0); tile * WIDTH < positions; tile += get_num_groups(0)) {
    const int p = POSITION(tile);
    const float wanted = p < positions ? label[label_at(p, label_run, label_stride)] : -1.0f;
    const bool lost = outside(wanted, classes), ignored = has_ignore && (int)wanted == ignore;
    const int own = lost ? 0 : (int)wanted;
    float above = 0;
    if (p < positions) {
      global const float* scores = SCORES(x, p);
      const float score = scores[own * step];
      for (int c = lane; c < classes; c += lanes) above += c != own && !(scores[c * step] < score);
    }
    above = sum_of_lanes(above, buffer, WIDTH);
    if (p < positions && lane == 0) {
      const bool hit = above < top_k;
      hits[p] = ignored || lost ? -1 : hit;
      if (!ignored) {
        sum += lost ? NAN : hit;
        counted += 1;
      }
    }
  }
  FINISH(result);
}

/* Accuracy of each class: share of hits among the positions with its label, 0 if there are none. The group number is the class. */
kernel void accuracy_per_class(OPERAND(const float, label), OPERAND(const char, hits), OPERAND(float, y), const int positions,
                               const int label_run) {
  LOCATE(label);
  LOCATE(hits);
  LOCATE(y);
  local float buffer[GROUP];
  const int own = get_group_id(0);
  float sum = 0, counted = 0;
  for (int p = get_local_id(0); p < positions; p += GROUP) {
    const int hit = hits[p];
    if (hit < 0 || (int)label[label_at(p, label_run, label_stride)] != own) continue;
    sum += hit;
    counted += 1;
  }
  sum = sum_of_lanes(sum, buffer, 1);
  counted = sum_of_lanes(counted, buffer, 1);
  if (get_local_id(0) == 0) y[own * y_stride] = sum / max(counted, 1.0f);
}
