/* Connectionist temporal classification (Graves et al., 2006): the loss of unsegmented label sequences, its gradient, and the best path.
 *
 * x is steps x samples x classes. logz is the logarithm of the sum of exp(x) over the classes. A sample has the labels targets[0 .. labels) and
 * the first `length` steps; counts holds both numbers. Its extended labels are blank, label, blank, .., blank: `used` = 2 labels + 1 of them.
 * alpha[t][s] is the log-probability of all paths that emit the extended labels up to s in the steps up to t, the emission in t included.
 * beta[t][s] is that of all paths through the rest, the emission in t excluded. Row t of beta is in slot t % 2.
 * A sample with fewer steps than labels and blanks between equal labels has no path: its cost and its gradient are 0.
 * A label outside the classes, or in layouts 1 and 2 the blank, is WRONG among the targets. Such a sample has the cost NaN and the gradient 0.
 *
 * targets    one work-item per sample.        best     one work-item per step and sample.
 * forward    one group of GROUP per sample.   decode   one work-item per sample.
 * backward   the same.                        edit_distance: one work-item per sample. PoCL's compiler refuses the name `distance`, a built-in function.
 *
 * GROUP   work-items per sample in forward and backward: 1 on CPUs
 * LAYOUT  of the labels. 0: samples x labels, in which blanks are left out. 1: sequence indicators and labels, both steps x samples; an indicator 0
 *         after the first step, and a label below 0, end the sample. 2: lengths, numbers of labels, and labels as labels x samples.
 * INDICATORS  whether decode has sequence indicators
 */
#include "common.h"

#ifndef GROUP
#define GROUP 1
#endif
#ifndef LAYOUT
#define LAYOUT 0
#endif
#ifndef INDICATORS
#define INDICATORS 0
#endif

#define WRONG -1

static float OWN(log_sum)(float a, float b) {
  const float most = fmax(a, b), least = fmin(a, b);
  return most == -INFINITY ? -INFINITY : most + log1p(exp(least - most));
}

/* The extended label s. */
static int OWN(label_at)(const global int* targets, int s, int blank) { return s & 1 ? targets[s / 2] : blank; }

/* Whether a path may go from the extended label s - 2 to s. */
static int OWN(skips)(const global int* targets, int s) { return (s & 1) && s > 1 && targets[s / 2] != targets[s / 2 - 1]; }

static int OWN(any_wrong)(const global int* targets, int labels) {
  for (int i = 0; i < labels; i++)
    if (targets[i] == WRONG) return 1;
  return 0;
}

/* The target of a label; a number that is not in the range of an int is not converted. */
static int OWN(target_of)(const float label, const int classes, const int blank) {
  const int target = label >= 0 && label < classes ? (int)label : WRONG;
  return target == blank ? WRONG : target;
}

static int OWN(has_path)(const global int* targets, int labels, int length) {
  int needed = labels;
  for (int i = 1; i < labels; i++) needed += targets[i] == targets[i - 1];
  return length > 0 && needed <= length;
}

kernel void ENTRY(targets)(
#if LAYOUT == 1
    OPERAND(const float, indicators),
#elif LAYOUT == 2
    OPERAND(const float, lengths), OPERAND(const float, numbers),
#endif
    OPERAND(const float, given), OPERAND(int, targets), OPERAND(int, counts), const int samples, const int steps, const int most, const int classes,
    const int blank, const int shift) {
  LOCATE(given);
  LOCATE(targets);
  LOCATE(counts);
  const int n = get_global_id(0);
  if (n >= samples) return;
  targets += (ulong)n * targets_stride;
  int labels = 0, length = steps;
#if LAYOUT == 0
  for (int i = 0; i < most; i++) {
    const float label = trunc(given[(ulong)n * given_stride + i]);
    if (label < 0) break;
    if (!(label >= blank && label < blank + 1)) targets[labels++] = target_of(label, classes, blank);
  }
#elif LAYOUT == 1
  LOCATE(indicators);
  for (int t = steps - 1; t > 0; t--)
    if ((int)(indicators[t * indicators_stride + n] + 0.5f) == 0) length = t;
  for (; labels < most; labels++) {
    const float label = given[labels * given_stride + n];
    if (label < 0) break;
    targets[labels] = target_of(label + 0.5f + shift, classes, blank);
  }
  if (labels == 0) length = 0;
#else
  LOCATE(lengths);
  LOCATE(numbers);
  length = clamp((int)lengths[n * lengths_stride], 0, steps);
  labels = clamp((int)numbers[n * numbers_stride], 0, most);
  for (int i = 0; i < labels; i++) targets[i] = target_of(trunc(given[i * given_stride + n]), classes, blank);
#endif
  counts[(ulong)n * counts_stride] = labels;
  counts[(ulong)n * counts_stride + 1] = length;
}

kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(const float, logz), OPERAND(const int, targets), OPERAND(const int, counts), OPERAND(float, alpha),
                    OPERAND(float, costs), const int classes, const int row, const int blank) {
  LOCATE(x);
  LOCATE(logz);
  LOCATE(targets);
  LOCATE(counts);
  LOCATE(alpha);
  LOCATE(costs);
  const int n = get_group_id(0), lane = get_local_id(0);
  targets += (ulong)n * targets_stride;
  alpha += (ulong)n * alpha_stride;
  const int labels = counts[(ulong)n * counts_stride], length = counts[(ulong)n * counts_stride + 1], used = 2 * labels + 1;
  const int wrong = any_wrong(targets, labels);
  if (wrong || !has_path(targets, labels, length)) {
    if (lane == 0) costs[n * costs_stride] = wrong ? NAN : 0;
    return;
  }
  for (int t = 0; t < length; t++) {
    const global float* scores = x + t * x_stride + (ulong)n * classes;
    const float sum = logz[t * logz_stride + n];
    const global float* before = alpha + (ulong)(t - 1) * row;
    for (int s = lane; s < used; s += GROUP) {
      float reached = s < 2 ? 0 : -INFINITY;
      if (t > 0) {
        reached = before[s];
        if (s > 0) reached = log_sum(reached, before[s - 1]);
        if (skips(targets, s)) reached = log_sum(reached, before[s - 2]);
      }
      alpha[(ulong)t * row + s] = reached + scores[label_at(targets, s, blank)] - sum;
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
  }
  if (lane == 0) {
    const global float* last = alpha + (ulong)(length - 1) * row;
    costs[n * costs_stride] = -(labels ? log_sum(last[used - 1], last[used - 2]) : last[0]);
  }
}

kernel void ENTRY(backward)(OPERAND(const float, x), OPERAND(const float, logz), OPERAND(const int, targets), OPERAND(const int, counts),
                     OPERAND(const float, alpha), OPERAND(const float, costs), OPERAND(const float, weight), OPERAND(float, dx), OPERAND(float, beta),
                     OPERAND(float, passed), const int steps, const int classes, const int row, const int blank, const int accumulate) {
  LOCATE(x);
  LOCATE(logz);
  LOCATE(targets);
  LOCATE(counts);
  LOCATE(alpha);
  LOCATE(costs);
  LOCATE(weight);
  LOCATE(dx);
  LOCATE(beta);
  LOCATE(passed);
  const int n = get_group_id(0), lane = get_local_id(0);
  targets += (ulong)n * targets_stride;
  alpha += (ulong)n * alpha_stride;
  beta += (ulong)n * beta_stride;
  passed += (ulong)n * passed_stride;
  const int labels = counts[(ulong)n * counts_stride], used = 2 * labels + 1;
  int length = counts[(ulong)n * counts_stride + 1];
  if (any_wrong(targets, labels) || !has_path(targets, labels, length)) length = 0;
  const float cost = costs[n * costs_stride], scale = weight[0];
  for (int t = steps - 1; t >= 0; t--) {
    global float* out = dx + t * dx_stride + (ulong)n * classes;
    if (t >= length) {
      if (!accumulate)
        for (int c = lane; c < classes; c += GROUP) out[c] = 0;
      continue;
    }
    const global float* scores = x + t * x_stride + (ulong)n * classes;
    const float sum = logz[t * logz_stride + n];
    global float* own = beta + t % 2 * row;
    const global float* after = beta + (t + 1) % 2 * row;
    for (int s = lane; s < used; s += GROUP) {
      float left = s + 2 >= used ? 0 : -INFINITY;
      if (t + 1 < length) {
        const global float* next = x + (t + 1) * x_stride + (ulong)n * classes;
        const float next_sum = logz[(t + 1) * logz_stride + n];
        left = after[s] + next[label_at(targets, s, blank)] - next_sum;
        if (s + 1 < used) left = log_sum(left, after[s + 1] + next[label_at(targets, s + 1, blank)] - next_sum);
        if (s + 2 < used && skips(targets, s + 2)) left = log_sum(left, after[s + 2] + next[label_at(targets, s + 2, blank)] - next_sum);
      }
      own[s] = left;
      passed[s] = exp(alpha[(ulong)t * row + s] + left + cost);
    }
    for (int c = lane; c < classes; c += GROUP) {
      const float slope = scale * exp(scores[c] - sum);
      out[c] = accumulate ? out[c] + slope : slope;
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (int s = lane; s < used; s += GROUP) {  /* the first place of a label sums all places */
      const int label = label_at(targets, s, blank);
      int first = s & 1 || s == 0;
      for (int i = 1; first && s & 1 && i < s; i += 2) first = targets[i / 2] != label;
      if (!first) continue;
      float total = 0;
      for (int i = s; i < used; i += 2) total += s == 0 || targets[i / 2] == label ? passed[i] : 0;
      out[label] -= scale * total;
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
  }
}

/* The class with the largest score, of equal ones the first, and its score. */
kernel void ENTRY(best)(OPERAND(const float, x), OPERAND(int, winners), OPERAND(float, scores), const int count, const int samples, const int classes) {
  LOCATE(x);
  LOCATE(winners);
  LOCATE(scores);
  const int i = get_global_id(0), t = i / samples, n = i % samples;
  if (i >= count) return;
  x += t * x_stride + (ulong)n * classes;
  int winner = 0;
  for (int c = 1; c < classes; c++)
    if (x[c] > x[winner]) winner = c;
  winners[t * winners_stride + n] = winner;
  scores[t * scores_stride + n] = x[winner];
}

/* The best path without blanks, and with `merge` without repetitions; -1 fills the rest. totals: the negated sum of the scores. */
kernel void ENTRY(decode)(OPERAND(const int, winners), OPERAND(const float, scores),
#if INDICATORS
                   OPERAND(const float, indicators),
#endif
                   OPERAND(float, sequences), OPERAND(int, lengths), OPERAND(float, totals), const int samples, const int steps, const int blank,
                   const int merge) {
  LOCATE(winners);
  LOCATE(scores);
  LOCATE(sequences);
  LOCATE(lengths);
  LOCATE(totals);
  const int n = get_global_id(0);
  if (n >= samples) return;
#if INDICATORS
  LOCATE(indicators);
#endif
  sequences += (ulong)n * sequences_stride;
  int length = 0, before = -1;
  float total = 0;
  for (int t = 0; t < steps; t++) {
#if INDICATORS
    if (t > 0 && indicators[t * indicators_stride + n] == 0) break;
#endif
    const int winner = winners[t * winners_stride + n];
    total -= scores[t * scores_stride + n];
    if (winner != blank && !(merge && winner == before)) sequences[length++] = winner;
    before = winner;
  }
  lengths[n * lengths_stride] = length;
  totals[n * totals_stride] = total;
  for (int t = length; t < steps; t++) sequences[t] = -1;
}

/* results: 1 - (edit distance / larger length), and whether the sequences are equal and not empty. row: one row of the table of distances. */
kernel void ENTRY(edit_distance)(OPERAND(const float, sequences), OPERAND(const int, lengths), OPERAND(const int, targets), OPERAND(const int, counts),
                          OPERAND(float, results), OPERAND(int, row), const int samples) {
  LOCATE(sequences);
  LOCATE(lengths);
  LOCATE(targets);
  LOCATE(counts);
  LOCATE(results);
  LOCATE(row);
  const int n = get_global_id(0);
  if (n >= samples) return;
  sequences += (ulong)n * sequences_stride;
  targets += (ulong)n * targets_stride;
  row += (ulong)n * row_stride;
  const int length = lengths[n * lengths_stride], labels = counts[(ulong)n * counts_stride], most = max(length, labels);
  for (int j = 0; j <= labels; j++) row[j] = j;
  for (int i = 1; i <= length; i++) {
    int corner = row[0];
    row[0] = i;
    for (int j = 1; j <= labels; j++) {
      const int above = row[j];
      row[j] = min(min(above, row[j - 1]) + 1, corner + ((int)sequences[i - 1] != targets[j - 1]));
      corner = above;
    }
  }
  results += (ulong)n * results_stride;
  results[0] = most ? 1 - (float)row[labels] / most : 1;
  results[1] = most && row[labels] == 0;
}
