/* The boxes that a detector of regions predicts, for DetectionOutput. No defines.
 *
 * Work-items: boxes.
 */
#include "anchors.h"

/* boxes: R x L in shares of the image, for R regions (image, x1, y1, x2, y2) and L boxes of each, which loc moves. loc has `columns` values for a
 * region, of which the last 4 L count. Boxes are cut at the edges of the image. info: its height and width. */
kernel void moved(OPERAND(const float, loc), OPERAND(const float, rois), OPERAND(const float, info), OPERAND(float, boxes), const int count,
                  const int own, const int columns) {
  const int i = get_global_id(0);
  if (i >= count) return;
  LOCATE(loc);
  LOCATE(rois);
  LOCATE(info);
  LOCATE(boxes);
  const int r = i / own;
  const float4 delta = vload4(0, loc + r * loc_stride + columns - 4 * own + 4 * (i % own));
  const float2 size = (float2)(info[1], info[0]);
  const float4 box = fmax(fmin(decode(vload4(0, rois + r * rois_stride + 1), delta), (float4)(size - 1, size - 1)), 0);
  vstore4((float4)(box.lo / size, (box.hi + 1) / size), i, boxes);
}
