/* softmax.cl for maps on CPUs, where neighbouring positions are contiguous in memory. No defines.
 *
 * Work-items: (blocks of 16 positions of an inner row, outer), one to a group; each loops over the classes of its positions. Sums go over the
 * positions of a block in order; `total` of softmax.cl then adds the blocks. In softmax_of_rows it is (1, outer): the classes of a row are contiguous.
 */
#include "softmax.h"
#include "part_cpu.h"

#define KERNEL kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
#define BLOCK                                                                                  \
  const int count = min(16, inner - (int)get_global_id(0) * 16);                               \
  const int p = get_global_id(1) * inner + get_global_id(0) * 16; /* the first position */     \
  const size_t block = get_global_id(1) * get_global_size(0) + get_global_id(0);

void OWN(softmax_of_block)(global const float* x, global float* y, const int count, const int classes, const ulong x_step, const ulong y_step) {
  float16 top = -INFINITY;
  for (int c = 0; c < classes; c++) {
    const float16 v = load_part(x + c * x_step, count);
    top = v > top ? v : top;
  }
  float16 sum = 0;
  for (int c = 0; c < classes; c++) {
    const float16 e = exp(load_part(x + c * x_step, count) - top);
    store_part(e, y + c * y_step, count);
    sum += e;
  }
  const float16 share = 1 / sum;
  for (int c = 0; c < classes; c++) store_part(load_part(y + c * y_step, count) * share, y + c * y_step, count);
}

KERNEL ENTRY(softmax)(OPERAND(const float, x), OPERAND(float, y), const int classes, const int inner, const int mid) {
  LOCATE(x);
  LOCATE(y);
  BLOCK
  softmax_of_block(SCORES(x, p), SCORES(y, p), count, classes, STEP(x), STEP(y));
}

KERNEL ENTRY(softmax_of_rows)(OPERAND(const float, x), OPERAND(float, y), const int classes, const int mid) {
  LOCATE(x);
  LOCATE(y);
  const int row = get_global_id(1), whole = classes / 16 * 16;
  x += (row / mid) * x_stride + (ulong)(row % mid) * classes;
  y += (row / mid) * y_stride + (ulong)(row % mid) * classes;
  float16 tops = -INFINITY, sums = 0;
  float lanes[16], top = -INFINITY, sum = 0;
  for (int c = 0; c < whole; c += 16) {
    const float16 v = vload16(0, x + c);
    tops = v > tops ? v : tops;
  }
  vstore16(tops, 0, lanes);
  for (int i = 0; i < 16; i++) top = max(top, lanes[i]);
  for (int c = whole; c < classes; c++) top = max(top, x[c]);
  for (int c = 0; c < classes; c += 16) {
    const int count = min(16, classes - c);
    const float16 e = exp(load_part(x + c, count) - top);
    store_part(e, y + c, count);
    if (count == 16) sums += e;
  }
  vstore16(sums, 0, lanes);
  for (int i = 0; i < 16; i++) sum += lanes[i];
  for (int c = whole; c < classes; c++) sum += y[c];
  const float share = 1 / sum;
  for (int c = 0; c < classes; c += 16) store_part(load_part(y + c, classes - c) * share, y + c, classes - c);
}

KERNEL ENTRY(softmax_backward)(OPERAND(const float, y), OPERAND(const float, dy), OPERAND(float, dx), const int classes, const int inner,
                        const int mid, const int accumulate) {
  LOCATE(y);
  LOCATE(dy);
  LOCATE(dx);
  BLOCK
  y = SCORES(y, p);
  dy = SCORES(dy, p);
  dx = SCORES(dx, p);
  float16 dot = 0;
  for (int c = 0; c < classes; c++) dot += load_part(dy + c * STEP(dy), count) * load_part(y + c * STEP(y), count);
  for (int c = 0; c < classes; c++) {
    float16 d = load_part(y + c * STEP(y), count) * (load_part(dy + c * STEP(dy), count) - dot);
    if (accumulate) d += load_part(dx + c * STEP(dx), count);
    store_part(d, dx + c * STEP(dx), count);
  }
}

KERNEL ENTRY(softmax_loss)(OPERAND(const float, x), OPERAND(const float, label), OPERAND(float, prob), OPERAND(float, parts), const int classes,
                    const int inner, const int mid, const int label_run, const int has_ignore, const int ignore, const float smoothing) {
  LOCATE(x);
  LOCATE(label);
  LOCATE(prob);
  LOCATE(parts);
  BLOCK
  global float* y = SCORES(prob, p);
  softmax_of_block(SCORES(x, p), y, count, classes, STEP(x), STEP(prob));
  float sum = 0, counted = 0;
  for (int i = 0; i < count; i++) {
    const float wanted = label[label_at(p + i, label_run, label_stride)];
    if (has_ignore && (int)wanted == ignore) continue;
    if (outside(wanted, classes)) sum = NAN;
    else sum -= (1 - smoothing) * log_of(y[(int)wanted * STEP(prob) + i]);
    for (int c = 0; smoothing > 0 && c < classes; c++) sum -= smoothing / classes * log_of(y[c * STEP(prob) + i]);
    counted += 1;
  }
  parts[2 * block] = sum;
  parts[2 * block + 1] = counted;
}

KERNEL ENTRY(softmax_loss_backward)(OPERAND(const float, prob), OPERAND(const float, label), OPERAND(const float, sums),
                             OPERAND(const float, weight), OPERAND(float, dx), const int classes, const int inner, const int mid,
                             const int label_run, const int has_ignore, const int ignore, const float smoothing, const float fixed,
                             const int accumulate) {
  LOCATE(prob);
  LOCATE(label);
  LOCATE(sums);
  LOCATE(weight);
  LOCATE(dx);
  BLOCK
  prob = SCORES(prob, p);
  dx = SCORES(dx, p);
  float wanted[16];
  for (int i = 0; i < 16; i++) wanted[i] = i < count ? label[label_at(p + i, label_run, label_stride)] : 0;
  const int16 own = convert_int16(vload16(0, wanted));
  const float16 whole = *weight / divisor(fixed, sums[1]);
  const float16 scale = has_ignore && own == ignore ? 0 : whole, off = smoothing / classes, on = 1 - smoothing + off;
  for (int c = 0; c < classes; c++) {
    const float16 q = load_part(prob + c * STEP(prob), count);
    float16 d = (q - (own == c ? on : off)) * scale;
    if (accumulate) d += load_part(dx + c * STEP(dx), count);
    store_part(d, dx + c * STEP(dx), count);
  }
}

KERNEL ENTRY(accuracy)(OPERAND(const float, x), OPERAND(const float, label), OPERAND(char, hits), OPERAND(float, parts), const int classes,
                const int inner, const int mid, const int label_run, const int has_ignore, const int ignore, const int top_k) {
  LOCATE(x);
  LOCATE(label);
  LOCATE(hits);
  LOCATE(parts);
  BLOCK
  x = SCORES(x, p);
  float wanted[16], scores[16];
  for (int i = 0; i < 16; i++) {
    wanted[i] = i < count ? label[label_at(p + i, label_run, label_stride)] : 0;
    scores[i] = i < count && !outside(wanted[i], classes) ? x[(int)wanted[i] * STEP(x) + i] : 0;
  }
  const int16 own = convert_int16(vload16(0, wanted));
  const float16 score = vload16(0, scores);
  float16 above = 0; /* floats, because Oclgrind 21.10 extends a true lane to the integer 255 */
  for (int c = 0; c < classes; c++) above += own != c && !(load_part(x + c * STEP(x), count) < score) ? (float16)(1) : (float16)(0);
  float better[16];
  vstore16(above, 0, better);
  float sum = 0, counted = 0;
  for (int i = 0; i < count; i++) {
    const bool lost = outside(wanted[i], classes), ignored = has_ignore && (int)wanted[i] == ignore, hit = better[i] < top_k;
    hits[p + i] = ignored || lost ? -1 : hit;
    if (ignored) continue;
    sum += lost ? NAN : hit;
    counted += 1;
  }
  parts[2 * block] = sum;
  parts[2 * block + 1] = counted;
}
