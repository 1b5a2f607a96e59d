/* The true boxes of each image, from the rows of AnnotatedData (ocaffe/kernels/detection/true_boxes.py). No defines.
 *
 * A row is image, label, instance, xmin, ymin, xmax, ymax, difficult. Work-items: images.
 */
#include "common.h"

/* lists (images x rows): the numbers of the rows of each image, in order, without difficult boxes unless `difficult_counts`. numbers: their number. bad: the
 * number of rows whose label is the background or no class. With `agnostic` every label but the background stands for a class. */
kernel void lists(OPERAND(const float, truth), OPERAND(int, lists), OPERAND(int, numbers), OPERAND(int, bad), const int images, const int rows,
                  const int classes, const int background, const int difficult_counts, const int agnostic) {
  LOCATE(truth);
  LOCATE(lists);
  LOCATE(numbers);
  LOCATE(bad);
  const int n = get_global_id(0);
  if (n >= images) return;
  int count = 0, wrong = 0;
  for (int g = 0; g < rows; g++) {
    const global float* row = truth + 8 * g;
    if ((int)row[0] != n) continue;
    const int raw = row[1], label = agnostic ? background + 1 : raw;
    wrong += raw == background || label < 0 || label >= classes || label == background;
    if (difficult_counts || row[7] == 0) lists[n * lists_stride + count++] = g;
  }
  numbers[n * numbers_stride] = count;
  bad[n * bad_stride] = wrong;
}
