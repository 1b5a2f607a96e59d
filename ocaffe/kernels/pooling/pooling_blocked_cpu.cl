/* MAX and AVE pooling for CPU runtimes on images whose channels are in blocks of V (docs/kernels.md, Channels in blocks on CPUs). The lanes of a vector are
   channels. METHOD, PADDING_COUNTS: see pooling.h; the window is an argument. Work-items: (`rows` lines of y, block of channels, sample). */
#define NV 1
#define MR 1
#define KH kh
#define KW kw
#define SH sh
#define SW sw
#define PH ph
#define PW pw
#include "pooling.h"
#include "tile_cpu.h"

SINGLE void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(float, y), int kh, int kw, int sh, int sw, int ph, int pw, int H, int W, int OH,
                    int OW, int rows) {
  LOCATE(x); LOCATE(y);
  const int first = get_global_id(0) * rows, end = min(OH, first + rows);
  x += get_global_id(2) * x_stride + (ulong)get_global_id(1) * H * W * V;
  y += get_global_id(2) * y_stride + (ulong)get_global_id(1) * OH * OW * V;
  for (int row = first; row < end; row++)
    for (int column = 0; column < OW; column++) {
      const int y0 = row * sh - ph, x0 = column * sw - pw;
      const int top = max(0, y0), bottom = min(H, y0 + kh), left = max(0, x0), right = min(W, x0 + kw);
#if METHOD == MAX
      vec result = (vec)(-FLT_MAX);
#else
      vec result = (vec)(0);
#endif
      ROLLED for (int r = top; r < bottom; r++)
        ROLLED for (int c = left; c < right; c++) {
          const vec v = GLOBAL(x + ((ulong)r * W + c) * V);
#if METHOD == MAX
          result = v > result ? v : result;
#else
          result += v;
#endif
        }
#if METHOD == AVE
      result /= (float)(EXTENT(y0, kh, ph, H) * EXTENT(x0, kw, pw, W));
#endif
      GLOBAL(y + ((ulong)row * OW + column) * V) = result;
    }
}
