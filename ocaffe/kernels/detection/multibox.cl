/* MultiBoxLoss: the matching of priors with true boxes, the loss and its gradients (ocaffe/kernels/detection/multibox.py).
 *
 *   GROUP   work-items of a group, a power of two, in kernels that work in groups; 1 on CPUs
 *
 * There are N images, P priors, and G true boxes `truth` (G x 8: image, label, instance, xmin, ymin, xmax, ymax, difficult). `settings` holds the
 * parameters that do not depend on shapes, see below. Matching is done in lanes: one per image, or with CLASSWISE one per class of each image,
 * to which only the true boxes of that class belong. `matches` (N x lanes x P) holds for each prior the number of its true box, or
 *   NOTHING    neither positive nor negative
 *   NEGATIVE   background
 *   CROSSING   before mining: the box crosses the border of the image, so it is neither matched nor a candidate
 * `lists` (N x G) and `numbers` (N) are the true boxes of each image, in order (true_boxes.cl).
 *
 * Work-items: overlaps: (priors, true boxes). bipartite: (lanes * GROUP, images). match: (priors, images). quotas, choose: (GROUP,
 * images). sum: (parts * GROUP). total: one group. loc_backward: (priors * boxes of a prior, images). conf_backward: (priors, images).
 */
#include "boxes.h"

#ifndef GROUP
#define GROUP 64
#endif

#define NOTHING -1
#define NEGATIVE -2
#define CROSSING -3

/* The order of Settings in ocaffe/kernels/detection/multibox.py. */
#define FLAG(i) ((int)settings[i])
#define CLASSES FLAG(0)
#define SHARED FLAG(1) /* all classes have the same box */
#define PRIORS_MATCH FLAG(2) /* match the priors, not the boxes that are predicted from them */
#define BACKGROUND FLAG(3)
#define DIFFICULT_COUNTS FLAG(4)
#define NO_CROSSING FLAG(5)
#define PER_PREDICTION FLAG(6)
#define OVERLAP settings[7]
#define CODE FLAG(8)
#define IN_TARGET FLAG(9) /* the variance is applied to the target, not to the prediction */
#define MINING FLAG(10)
#define NEG_RATIO settings[11]
#define NEG_OVERLAP settings[12]
#define SAMPLE FLAG(13)
#define AGNOSTIC FLAG(14)
#define INSIDE FLAG(15)
#define L2 FLAG(16)
#define LOGISTIC FLAG(17)
#define LOC_WEIGHT settings[18]
#define NORMALIZER settings[19] /* 0: the number of matches */
#define LOC_COUNTS FLAG(20)
#define CONF_COUNTS FLAG(21)

#define NO_MINING 0
#define MAX_NEGATIVE 1
#define HARD_EXAMPLE 2

#define LEAST 1e-6f /* overlaps up to this value count as none */

/* Whether classes are matched separately. */
#define CLASSWISE (!SHARED && !PRIORS_MATCH)
#define LANES (CLASSWISE ? CLASSES : 1)
#define OWN_BOXES (SHARED ? 1 : CLASSES)

#define TRUTH(g) (truth + (g) * 8)
#define RAW_LABEL(g) ((int)TRUTH(g)[1])
#define LABEL(g) (AGNOSTIC ? BACKGROUND + 1 : RAW_LABEL(g))
#define TRUE_BOX(g) vload4(0, TRUTH(g) + 3)
#define IS_CLASS(label) ((label) >= 0 && (label) < CLASSES && (label) != BACKGROUND)
#define VARIANCE(p) vload4((P) + (p), priors)
#define APPLIED_VARIANCE(p) (IN_TARGET ? (float4)(1) : VARIANCE(p))
#define EACH(i, first, end, step) for (int i = first; i < (end); i += step)
#define EVERYTHING (CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)

#define COMMON OPERAND(const float, settings), OPERAND(const float, truth)
#define LOCATE_COMMON                                                                     \
  LOCATE(settings);                                                                       \
  LOCATE(truth)

/* Return the box that prior p predicts, of class c if classes have separate boxes. */
float4 predicted(global const float* settings, global const float* loc, global const float* priors, const int P, const int p, const int c) {
  return box_decode(vload4(p, priors), APPLIED_VARIANCE(p), vload4(p * OWN_BOXES + (SHARED ? 0 : c), loc), CODE);
}

/* overlaps (G x P): of true boxes with priors, or with the boxes predicted for their image and class; -1 for boxes that cross the border of
 * the image, if NO_CROSSING. */
kernel void overlaps(COMMON, OPERAND(const float, loc), OPERAND(const float, priors), OPERAND(float, overlaps), const int P, const int images) {
  LOCATE_COMMON;
  LOCATE(loc);
  LOCATE(priors);
  LOCATE(overlaps);
  const int p = get_global_id(0), g = get_global_id(1), n = (int)TRUTH(g)[0];
  if (p >= P || n < 0 || n >= images) return;
  float4 box = vload4(p, priors);
  if (!PRIORS_MATCH) {
    if (CLASSWISE && !IS_CLASS(RAW_LABEL(g))) return;
    box = predicted(settings, loc + n * loc_stride, priors, P, p, RAW_LABEL(g));
  }
  const bool crossing = any(box < 0) || any(box > 1);
  overlaps[(long)g * P + p] = NO_CROSSING && crossing ? -1 : box_overlap(box, TRUE_BOX(g), 0);
}

/* Whether a true box of the list belongs to the lane. */
#define TAKES_PART(g) (!CLASSWISE || RAW_LABEL(g) == lane)
#define NOT_KNOWN -2

/* partners (G): the prior of each true box in greedy bipartite matching. The pair with the largest overlap is selected repeatedly, each prior
 * and each true box once; -1 if none is left. Ties: the lowest prior, then the lowest true box. nearest, best (G): the best remaining prior of
 * each true box, and its overlap. */
kernel void bipartite(COMMON, OPERAND(const float, overlaps), OPERAND(const int, lists), OPERAND(const int, numbers), OPERAND(int, partners),
                      OPERAND(int, nearest), OPERAND(float, best), const int P) {
  local float values[GROUP];
  local int places[GROUP];
  LOCATE_COMMON;
  LOCATE(overlaps);
  LOCATE(lists);
  LOCATE(numbers);
  LOCATE(partners);
  LOCATE(nearest);
  LOCATE(best);
  const int item = get_local_id(0), lane = get_group_id(0), n = get_group_id(1), count = numbers[n * numbers_stride];
  if (CLASSWISE && lane == BACKGROUND) return;
  lists += n * lists_stride;
  EACH(k, item, count, GROUP) {
    if (!TAKES_PART(lists[k])) continue;
    partners[lists[k]] = -1;
    nearest[lists[k]] = NOT_KNOWN;
  }
  for (int turn = 0; turn < count; turn++) {
    barrier(EVERYTHING);
    for (int k = 0; k < count; k++) {
      const int g = lists[k];
      if (!TAKES_PART(g) || partners[g] >= 0 || nearest[g] != NOT_KNOWN) continue;
      barrier(EVERYTHING);
      values[item] = LEAST;
      places[item] = -1;
      EACH(p, item, P, GROUP) {
        const float value = overlaps[(long)g * P + p];
        if (!(value > values[item])) continue;
        bool taken = false;
        for (int other = 0; turn > 0 && other < count; other++) taken |= TAKES_PART(lists[other]) && partners[lists[other]] == p;
        if (taken) continue;
        values[item] = value;
        places[item] = p;
      }
      for (int reach = GROUP / 2; reach > 0; reach /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item >= reach || places[item + reach] < 0) continue;
        const bool is_lower = values[item + reach] == values[item] && places[item + reach] < places[item];
        if (places[item] < 0 || values[item + reach] > values[item] || is_lower) {
          values[item] = values[item + reach];
          places[item] = places[item + reach];
        }
      }
      if (item == 0) {
        nearest[g] = places[0];
        best[g] = values[0];
      }
    }
    barrier(EVERYTHING);
    int chosen = -1;
    for (int k = 0; k < count; k++) {
      const int g = lists[k];
      if (!TAKES_PART(g) || partners[g] >= 0 || nearest[g] < 0) continue;
      if (chosen < 0 || best[g] > best[chosen] || (best[g] == best[chosen] && nearest[g] < nearest[chosen])) chosen = g;
    }
    const int prior = chosen < 0 ? -1 : nearest[chosen];
    barrier(EVERYTHING);
    EACH(k, item, prior < 0 ? 0 : count, GROUP) {
      const int g = lists[k];
      if (g == chosen) partners[g] = prior;
      else if (TAKES_PART(g) && nearest[g] == prior) nearest[g] = NOT_KNOWN;
    }
  }
}

/* Return the match of prior p in the lane; largest: its largest overlap. */
int match_of(global const float* settings, global const float* truth, global const float* overlaps, global const int* list, global const int* partners,
             const int count, const int P, const int p, const int lane, float* largest) {
  int match = NOTHING;
  float most = -1;
  *largest = 0;
  for (int k = 0; k < count; k++) {
    const int g = list[k];
    if (!TAKES_PART(g)) continue;
    const float overlap = overlaps[(long)g * P + p];
    if (partners[g] == p) return g;
    if (overlap < 0) return CROSSING;
    if (!(overlap > LEAST)) continue;
    *largest = fmax(*largest, overlap);
    if (PER_PREDICTION && overlap >= OVERLAP && overlap > most) {
      most = overlap;
      match = g;
    }
  }
  return match;
}

/* Return the prediction minus the target. With INSIDE, sides outside of the image get no gradient. */
float4 difference(global const float* settings, global const float* loc, global const float* priors, const float4 box, const int P, const int p,
                  const int c) {
  const float4 prior = vload4(p, priors), target = box_encode(prior, APPLIED_VARIANCE(p), box, CODE);
  float4 prediction = vload4(p * OWN_BOXES + (SHARED ? 0 : c), loc);
  if (INSIDE) {
    const float4 matched = PRIORS_MATCH ? prior : predicted(settings, loc, priors, P, p, c);
    prediction = select(prediction, target, matched < 0 || matched > 1);
  }
  return IN_TARGET ? prediction / VARIANCE(p) - target / VARIANCE(p) : prediction - target;
}

float loc_loss(global const float* settings, const float4 d) {
  const float4 size = fabs(d), square = 0.5f * d * d, each = L2 ? square : select(size - 0.5f, square, size < 1);
  return each.x + each.y + each.z + each.w;
}

/* Return the cross-entropy of the softmax of a row of scores. */
float softmax_loss(global const float* row, const int classes, const int label) {
  if (label < 0 || label >= classes) return NAN;
  float top = row[0], sum = 0;
  for (int c = 1; c < classes; c++) top = fmax(top, row[c]);
  for (int c = 0; c < classes; c++) sum += exp(row[c] - top);
  const float p = exp(row[label] - top) / sum;
  return -log(p < FLT_MIN ? FLT_MIN : p);
}

float logistic_loss(const float x, const float target) { return log1p(exp(-fabs(x))) + fmax(x, 0) - x * target; }

/* Write the matches before mining, and the losses of the candidates (-INFINITY for priors that are not candidates). */
kernel void match(COMMON, OPERAND(const float, loc), OPERAND(const float, conf), OPERAND(const float, priors), OPERAND(const float, overlaps),
                  OPERAND(const int, lists), OPERAND(const int, numbers), OPERAND(const int, partners), OPERAND(int, matches),
                  OPERAND(float, losses), const int P) {
  LOCATE_COMMON;
  LOCATE(loc);
  LOCATE(conf);
  LOCATE(priors);
  LOCATE(overlaps);
  LOCATE(lists);
  LOCATE(numbers);
  LOCATE(partners);
  LOCATE(matches);
  LOCATE(losses);
  const int p = get_global_id(0), n = get_global_id(1), count = numbers[n * numbers_stride];
  if (p >= P) return;
  float largest = 0;
  int match = NOTHING;
  for (int lane = 0; lane < LANES; lane++) {
    match = lane == BACKGROUND && CLASSWISE
                ? NOTHING
                : match_of(settings, truth, overlaps, lists + n * lists_stride, partners, count, P, p, lane, &largest);
    if (!SHARED && PRIORS_MATCH && match >= 0 && !IS_CLASS(RAW_LABEL(match))) match = NOTHING;
    matches[n * matches_stride + lane * P + p] = match;
  }
  if (MINING == NO_MINING) return;
  float loss = -INFINITY;
  if (MINING == HARD_EXAMPLE ? count > 0 : match == NOTHING && count > 0 && largest < NEG_OVERLAP) {
    global const float* row = conf + n * conf_stride + p * CLASSES;
    const int label = match >= 0 ? LABEL(match) : BACKGROUND;
    if (LOGISTIC) {
      loss = 0;
      for (int c = 0; c < CLASSES; c++) loss += logistic_loss(row[c], c == label);
    } else {
      loss = softmax_loss(row, CLASSES, label);
    }
    if (MINING == HARD_EXAMPLE && match >= 0)
      loss += loc_loss(settings, difference(settings, loc + n * loc_stride, priors, TRUE_BOX(match), P, p, 0));
  }
  losses[n * losses_stride + p] = isnan(loss) ? INFINITY : loss;  /* `rank` takes no NaN, and the sum must show it */
}

/* boxes (N x P x 4): the predicted boxes, for the suppression of candidates. */
kernel void decode(OPERAND(const float, settings), OPERAND(const float, loc), OPERAND(const float, priors), OPERAND(float, boxes), const int P) {
  LOCATE(settings);
  LOCATE(loc);
  LOCATE(priors);
  LOCATE(boxes);
  const int p = get_global_id(0), n = get_global_id(1);
  if (p < P) vstore4(predicted(settings, loc + n * loc_stride, priors, P, p, 0), p, boxes + n * boxes_stride);
}

/* quotas: the number of candidates to select in each image. */
kernel void quotas(OPERAND(const float, settings), OPERAND(const int, matches), OPERAND(int, quotas), const int P) {
  local int sums[GROUP];
  LOCATE(settings);
  LOCATE(matches);
  LOCATE(quotas);
  const int item = get_local_id(0), n = get_group_id(1);
  int positives = 0;
  EACH(p, item, P, GROUP) positives += matches[n * matches_stride + p] >= 0;
  sums[item] = positives;
  for (int half_group = GROUP / 2; half_group > 0; half_group /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < half_group) sums[item] += sums[item + half_group];
  }
  if (item == 0) quotas[n * quotas_stride] = MINING == HARD_EXAMPLE ? SAMPLE : (int)(sums[0] * NEG_RATIO);
}

/* Write the matches after mining. At most `quotas` of the `numbers` candidates in an image's list are selected. Selected priors without a match
 * become negative; other unmatched priors become NOTHING. With hard examples, matched priors that are not selected also become NOTHING. */
kernel void choose(OPERAND(const float, settings), OPERAND(const int, chosen), OPERAND(const int, numbers), OPERAND(const int, quotas),
                   OPERAND(int, matches), const int P) {
  LOCATE(settings);
  LOCATE(chosen);
  LOCATE(numbers);
  LOCATE(quotas);
  LOCATE(matches);
  const int item = get_local_id(0), n = get_group_id(1), count = min(numbers[n * numbers_stride], quotas[n * quotas_stride]), mark = 1 << 30;
  chosen += n * chosen_stride;
  matches += n * matches_stride;
  EACH(k, item, count, GROUP) {
    const int match = matches[chosen[k]];
    matches[chosen[k]] = match >= 0 ? match | mark : match == NOTHING ? NEGATIVE : match;
  }
  barrier(CLK_GLOBAL_MEM_FENCE);
  EACH(p, item, P, GROUP) {
    const int match = matches[p];
    if (match == CROSSING || (MINING == HARD_EXAMPLE && match >= 0 && !(match & mark))) matches[p] = NOTHING;
    else if (match >= 0) matches[p] = match & ~mark;
  }
}

/* Return the label that the softmax of prior p is trained with, or -1 if the prior does not count. */
int label_of(global const float* settings, global const float* truth, global const int* matches, const int P, const int p) {
  int label = -1;
  for (int lane = 0; lane < LANES; lane++) {
    const int match = matches[lane * P + p];
    if (match >= 0) label = LABEL(match);
    else if (label < 0 && (MINING == NO_MINING || match == NEGATIVE)) label = BACKGROUND;
  }
  return label;
}

/* Return the target of class c of prior p of image n for the logistic loss; the default is the number BACKGROUND. Without mining, SSD writes
 * the ones of image n from row n P of the scores on, instead of n P CLASSES, so that those of several images overlap. */
float target_of(global const float* settings, global const float* truth, global const int* matches, const ulong matches_stride, const int images,
                const int P, const int n, const int p, const int c) {
  if (MINING != NO_MINING) {
    const int match = matches[n * matches_stride + p];
    return c == (match >= 0 ? LABEL(match) : BACKGROUND) ? 1 : BACKGROUND;
  }
  const long element = ((long)n * P + p) * CLASSES + c;
  for (long image = max(element / P - CLASSES + 1, 0L); image <= element / P && image < images; image++) {
    const int place = element - image * P, prior = place / CLASSES;
    for (int lane = 0; lane < LANES; lane++) {
      const int match = matches[image * matches_stride + lane * P + prior];
      if (match >= 0 && LABEL(match) == place % CLASSES) return 1;
    }
  }
  return BACKGROUND;
}

/* The class whose box a match in the lane refers to. */
#define BOX_CLASS(match) (CLASSWISE ? lane : RAW_LABEL(match))

/* Add the values of all work-items; the sum is in sums[0]. */
void add_up(local float4* sums, const float4 own) {
  const int item = get_local_id(0);
  sums[item] = own;
  for (int reach = GROUP / 2; reach > 0; reach /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < reach) sums[item] += sums[item + reach];
  }
}

/* partial (parts x 4): loss of the locations, loss of the scores, number of matches, of `share` priors. */
kernel void sum(COMMON, OPERAND(const float, loc), OPERAND(const float, conf), OPERAND(const float, priors), OPERAND(const int, matches),
                OPERAND(float, partial), const int P, const int images, const int share) {
  local float4 sums[GROUP];
  LOCATE_COMMON;
  LOCATE(loc);
  LOCATE(conf);
  LOCATE(priors);
  LOCATE(matches);
  LOCATE(partial);
  const int part = get_group_id(0), first = part * share;
  float4 own = 0;
  EACH(i, first + get_local_id(0), min(first + share, images * P), GROUP) {
    const int n = i / P, p = i % P;
    global const int* row_matches = matches + n * matches_stride;
    for (int lane = 0; lane < LANES; lane++) {
      const int match = row_matches[lane * P + p];
      if (match < 0) continue;
      const float4 d = difference(settings, loc + n * loc_stride, priors, TRUE_BOX(match), P, p, BOX_CLASS(match));
      own += (float4)(loc_loss(settings, d), 0, 1, 0);
    }
    const int label = label_of(settings, truth, row_matches, P, p);
    if (label < 0) continue;
    global const float* row = conf + n * conf_stride + p * CLASSES;
    if (LOGISTIC)
      for (int c = 0; c < CLASSES; c++) own.y += logistic_loss(row[c], target_of(settings, truth, matches, matches_stride, images, P, n, p, c));
    else
      own.y += softmax_loss(row, CLASSES, label);
  }
  add_up(sums, own);
  if (get_local_id(0) == 0) vstore4(sums[0], part, partial);
}

/* Write the loss and its divisor. */
kernel void total(OPERAND(const float, settings), OPERAND(const float, partial), OPERAND(const int, bad), OPERAND(float, loss),
                  OPERAND(float, normalizer), const int parts, const int images) {
  local float4 sums[GROUP];
  LOCATE(settings);
  LOCATE(partial);
  LOCATE(bad);
  LOCATE(loss);
  LOCATE(normalizer);
  float4 own = 0;
  EACH(i, get_local_id(0), parts, GROUP) own += vload4(i, partial);
  EACH(n, get_local_id(0), images, GROUP) own.w += bad[n * bad_stride];
  add_up(sums, own);
  if (get_local_id(0) != 0) return;
  const float divisor = NORMALIZER > 0 ? NORMALIZER : fmax(sums[0].z, 1.0f);
  normalizer[0] = divisor;
  loss[0] = sums[0].w > 0 ? NAN : (LOC_COUNTS ? LOC_WEIGHT * sums[0].x / divisor : 0) + (CONF_COUNTS ? sums[0].y / divisor : 0);
}

/* `weight`: the loss weight. */
kernel void loc_backward(COMMON, OPERAND(const float, loc), OPERAND(const float, priors), OPERAND(const int, matches),
                         OPERAND(const float, normalizer), OPERAND(const float, weight), OPERAND(float, dloc), const int count, const int P,
                         const int accumulate) {
  LOCATE_COMMON;
  LOCATE(loc);
  LOCATE(priors);
  LOCATE(matches);
  LOCATE(normalizer);
  LOCATE(weight);
  LOCATE(dloc);
  const int i = get_global_id(0), n = get_global_id(1);
  if (i >= count) return;
  const int p = i / OWN_BOXES, c = i % OWN_BOXES, lane = CLASSWISE ? c : 0, match = matches[n * matches_stride + lane * P + p];
  float4 gradient = 0;
  if (match >= 0 && (SHARED || BOX_CLASS(match) == c)) {
    const float4 d = difference(settings, loc + n * loc_stride, priors, TRUE_BOX(match), P, p, c);
    gradient = (L2 ? d : clamp(d, -1.0f, 1.0f)) * (LOC_WEIGHT * weight[0] / normalizer[0]);
  }
  dloc += n * dloc_stride;
  if (accumulate) gradient += vload4(i, dloc);
  vstore4(gradient, i, dloc);
}

kernel void conf_backward(COMMON, OPERAND(const float, conf), OPERAND(const int, matches), OPERAND(const float, normalizer),
                          OPERAND(const float, weight), OPERAND(float, dconf), const int P, const int images, const int accumulate) {
  LOCATE_COMMON;
  LOCATE(conf);
  LOCATE(matches);
  LOCATE(normalizer);
  LOCATE(weight);
  LOCATE(dconf);
  const int p = get_global_id(0), n = get_global_id(1);
  if (p >= P) return;
  global const float* row = conf + n * conf_stride + p * CLASSES;
  const int label = label_of(settings, truth, matches + n * matches_stride, P, p);
  const float factor = label < 0 ? 0 : weight[0] / normalizer[0];
  float top = row[0], sum = 0;
  if (label >= 0 && !LOGISTIC) {
    for (int c = 1; c < CLASSES; c++) top = fmax(top, row[c]);
    for (int c = 0; c < CLASSES; c++) sum += exp(row[c] - top);
  }
  dconf += n * dconf_stride + p * CLASSES;
  for (int c = 0; c < CLASSES; c++) {
    float gradient = 0;
    if (label >= 0 && LOGISTIC)
      gradient = 1 / (1 + exp(-row[c])) - target_of(settings, truth, matches, matches_stride, images, P, n, p, c);
    else if (label >= 0)
      gradient = exp(row[c] - top) / sum - (c == label);
    dconf[c] = gradient * factor + (accumulate ? dconf[c] : 0);
  }
}
