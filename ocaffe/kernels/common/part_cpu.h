/* Loads and stores of vectors of 16 that may reach beyond the end of a row. The first `count` elements exist; the others load as 0 and are not written. */
#ifndef OCAFFE_PART_CPU_H
#define OCAFFE_PART_CPU_H

float16 OWN(load_part)(global const float* p, const int count) {
  if (count >= 16) return vload16(0, p);
  float part[16];
  for (int i = 0; i < 16; i++) part[i] = i < count ? p[i] : 0;
  return vload16(0, part);
}

void OWN(store_part)(const float16 v, global float* p, const int count) {
  if (count >= 16) {
    vstore16(v, 0, p);
    return;
  }
  float part[16];
  vstore16(v, 0, part);
  for (int i = 0; i < count; i++) p[i] = part[i];
}
#endif
