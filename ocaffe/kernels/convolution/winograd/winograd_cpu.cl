/* Convolution with 3 x 3 windows and stride 1 for CPU runtimes by Winograd's F(4x4, 3x3): Lavin & Gray, "Fast algorithms for convolutional
   neural networks", 2015. A tile is 4 x 4 outputs, which depend on 6 x 6 inputs. Tiles and filters are transformed to 36 values each; 36
   matrix products of these take a quarter of the multiplications. backward_data is forward with mirrored filters.

     filter    U[p] = G w G'                      p < 36, for every (output, channel)
     forward   V[p] = B' x B  for every (channel, tile);  M[p] = U[p] V[p], summed over channels;  y = A' M A (+ bias) (+ y), then the activation
     backward_filter, in four kernels that process some tiles at a time
       input     V, [group][36][panel of NR channels][tile][NR]
       gradient  D[p] = A dy A'  for every (output, tile): [group][36][output][tile]
       product   S[p] (+)= D[p] V[p]', summed over tiles: [group][36][output][channel]
       window    dw = G' S G (+ dw)

   V, NV, MR, KC    the register tile, see tile_cpu.h: MR outputs x NR tiles

   forward processes NR tiles at a time, numbered through the whole batch. Its transformed values are in a workspace per work-item, which
   stays in the caches: [36][channels][NR], then the products of `chunk` outputs, [36][chunk][NR].
   Work-items: filter: (KC channels, panel of MR outputs, group). forward: (`share` blocks of NR tiles, `block` outputs, group). input: (NR tiles,
   NR channels, group). gradient: (NR tiles, BURST outputs, group). product: (p, `block` outputs, group). window: (1, output, group). */
#include "common.h"
#include "tile_cpu.h"
#include "winograd_cpu.h"

inline void OWN(copy)(const float* from, global float* to, int count) {
  int i = 0;
  ROLLED for (; i + V <= count; i += V) GLOBAL(to + i) = PRIVATE(from + i);
  ROLLED for (; i < count; i++) to[i] = from[i];
}

/* U as [group][panel of MR rows][36][depth][MR]. Element (row, k, tap) is
   w[group * group_step + row * row_step + k * step + tap], with the taps in reverse order if `turned`. */
SINGLE void ENTRY(filter)(OPERAND_RESTRICT(const float, w), OPERAND_RESTRICT(float, packed), int rows, int depth, int group_step, int row_step, int step,
                   int turned) {
  LOCATE(w); LOCATE(packed);
  const int r0 = get_global_id(1) * MR, k0 = get_global_id(0) * KC, k1 = min(depth, k0 + KC);
  float taps[9][MR * V] __attribute__((aligned(64)));
  float made[POINTS][RUN * MR] __attribute__((aligned(64)));
  const int last = rows - 1 - r0, sign = turned ? -1 : 1;
  w += (ulong)get_global_id(2) * group_step + (ulong)r0 * row_step + (turned ? 8 : 0);
  packed += ((ulong)get_global_id(2) * get_global_size(1) + get_global_id(1)) * POINTS * depth * MR;
  for (int k = k0; k < k1; k += RUN) {
    const int valid = min(RUN, k1 - k);
    for (int b = 0; b < valid; b += V) {
      for (int i = 0; i < MR; i++) { /* rows past the last are copies of it; their results are not used */
        global const float* row = w + (ulong)min(i, last) * row_step + (ulong)(k + b) * step;
        for (int j = 0; j < min(V, valid - b); j++, row += step)
#pragma unroll
          for (int t = 0; t < 9; t++) taps[t][j * MR + i] = row[sign * t];
      }
      for (int j = 0; j < MR * V; j += V) {
        vec down[3][SIDE];
#pragma unroll
        for (int x = 0; x < 3; x++) {
          const vec column[3] = {PRIVATE(taps[x] + j), PRIVATE(taps[3 + x] + j), PRIVATE(taps[6 + x] + j)};
          TRANSFORM_FILTER(down[x], column);
        }
#pragma unroll
        for (int y = 0; y < SIDE; y++) {
          const vec row[3] = {down[0][y], down[1][y], down[2][y]};
          vec u[SIDE];
          TRANSFORM_FILTER(u, row);
#pragma unroll
          for (int x = 0; x < SIDE; x++) PRIVATE(made[y * SIDE + x] + b * MR + j) = u[x];
        }
      }
    }
    for (int p = 0; p < POINTS; p++) copy(made[p], packed + ((ulong)p * depth + k) * MR, valid * MR);
  }
}

SINGLE void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, packed), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), OPERAND_RESTRICT(float, space), int batch, int channels, int outputs, int H, int W, int OH, int OW,
                    int ph, int pw, int share, int block, int chunk, int has_bias, int accumulate, ACTIVATION) {
  LOCATE(x); LOCATE(packed); LOCATE(bias); LOCATE(y); LOCATE(space);
  const int g = get_global_id(2), o0 = get_global_id(1) * block, o1 = min(outputs, o0 + block);
  const int across = (OW + OUT - 1) / OUT, down = (OH + OUT - 1) / OUT, tiles = batch * down * across, plane = H * W;
  const ulong group = (ulong)g * channels * plane, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * channels * plane;
  const ulong pitch = STEP(channels * NR);
  Rows rows[PIPELINE] __attribute__((aligned(64)));
  float columns[BURST][POINTS * (NR + V) + V] __attribute__((aligned(64)));
  float pixels[PIPELINE][OUT][OUT * NR + V] __attribute__((aligned(64)));
  Strip strips[NR];
  space += ((ulong)(g * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0)) * space_stride;
  global float* products = space + POINTS * pitch;
  x += group;
  y += (ulong)g * outputs * OH * OW;
  bias += g * outputs;
  packed += (ulong)g * ((outputs + MR - 1) / MR * MR) * POINTS * channels;
  for (int i = 0; i < PIPELINE * SIDE * OUT * SLOTS; i++) rows[0][0][0][i] = 0.0f;
  for (int i = 0; i < BURST * (POINTS * (NR + V) + V); i++) columns[0][i] = 0.0f;
  for (int t0 = get_global_id(0) * share * NR, end = min(tiles, t0 + share * NR); t0 < end; t0 += NR) {
    const int count = cut(strips, t0, end, across, down, ph, pw);
    for (int c0 = 0; c0 < channels; c0 += BURST) {
      const int cn = min(BURST, channels - c0);
      transform(x + (ulong)c0 * plane, x_stride, readable - (ulong)c0 * plane, strips, count, H, W, SIDE, cn, rows, columns);
      for (int p = 0; p < POINTS; p++)
        for (int c = 0; c < cn; c++)
#pragma unroll
          for (int j = 0; j < NV; j++)
            GLOBAL(space + p * pitch + (c0 + c) * NR + j * V) = PRIVATE(columns[c] + p * (NR + V) + j * V);
    }
    for (int first = o0; first < o1; first += chunk) {
      const int last = min(o1, first + chunk);
      for (int p = 0; p < POINTS; p++)
        for (int k0 = 0; k0 < channels; k0 += KC) {
          const int depth = min(KC, channels - k0);
          global const float* right = space + p * pitch + k0 * NR;
          for (int o = first; o < last; o += MR) {
            global const float* left = packed + ((ulong)o * POINTS + p * MR) * channels + k0 * MR;
            global float* to = products + (p * chunk + o - first) * NR;
            vec acc[MR][NV];
            MULTIPLY_AT(GLOBAL, acc, left[k * MR + i], right, NR, depth);
#pragma unroll
            for (int i = 0; i < MR; i++)
#pragma unroll
              for (int j = 0; j < NV; j++) {
                if (k0) acc[i][j] += GLOBAL(to + i * NR + j * V);
                GLOBAL(to + i * NR + j * V) = acc[i][j];
              }
          }
        }
      for (int o = first; o < last; o += PIPELINE) {
        const int on = min(PIPELINE, last - o);
        for (int i = 0; i < on; i++)
          for (int v = 0; v < NV; v++) transform_back(products + (o - first + i) * NR + v * V, chunk * NR, pixels[i][0] + v * OUT * V);
        for (int j = 0; j < on; j++)
          for (int i = 0; i < count; i++) {
            const Strip s = strips[i];
            const int oy = s.y + ph, ox = s.x + pw;
            global float* to = y + s.n * y_stride + ((ulong)(o + j) * OH + oy) * OW + ox;
            for (int r = 0; r < min(OUT, OH - oy); r++, to += OW)
              finish(pixels[j][r] + OUT * s.first, to, min(OUT * s.count, OW - ox), FACTOR(bias, o + j), OFFSET(bias, o + j), accumulate,
                     GIVEN_ACTIVATION);
          }
      }
    }
  }
}

/* Tiles [t0, t0 + length) of all; a launch has room for `pitch` tiles. */
#define TILES int batch, int planes, int H, int W, int OH, int OW, int ph, int pw, int t0, int length, int pitch
#define STRIPS(begin, ph, pw)                                                                             \
  const int across = (OW + OUT - 1) / OUT, down = (OH + OUT - 1) / OUT, begin = get_global_id(0) * NR;    \
  Strip strips[NR];                                                                                       \
  const int count = cut(strips, t0 + begin, t0 + length, across, down, ph, pw);                           \
  Rows rows[PIPELINE] __attribute__((aligned(64)));                                                       \
  for (int i = 0; i < PIPELINE * SIDE * OUT * SLOTS; i++) rows[0][0][0][i] = 0.0f

SINGLE void ENTRY(input)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(float, made), TILES) {
  LOCATE(x); LOCATE(made);
  STRIPS(begin, ph, pw);
  const int g = get_global_id(2), panel = get_global_id(1), panels = get_global_size(1), plane = H * W;
  const ulong group = (ulong)g * planes * plane, readable = (batch - 1) * x_stride + (get_global_size(2) - g) * planes * plane;
  float columns[V][POINTS * (NR + V) + V] __attribute__((aligned(64)));
  for (int i = 0; i < V * (POINTS * (NR + V) + V); i++) columns[0][i] = 0.0f;
  for (int c = 0; c < NR; c += V) {
    const ulong first = (ulong)(panel * NR + c) * plane;
    const int valid = clamp(planes - panel * NR - c, 0, V);
    transform(x + group + first, x_stride, readable - first, strips, count, H, W, SIDE, valid, rows, columns);
    for (int p = 0; p < POINTS; p++) {
      global float* to = made + (g * POINTS + p) * STEP(panels * pitch * NR) + (panel * pitch + begin) * NR + c;
      for (int t = 0; t < NR; t += V) {
        vec block[V];
#pragma unroll
        for (int i = 0; i < V; i++) block[i] = PRIVATE(columns[i] + p * (NR + V) + t);
        transpose(block);
#pragma unroll
        for (int i = 0; i < V; i++) GLOBAL(to + (t + i) * NR) = block[i];
      }
    }
  }
}

SINGLE void ENTRY(gradient)(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, made), TILES) {
  LOCATE(dy); LOCATE(made);
  STRIPS(begin, 0, 0);
  const int g = get_global_id(2), o = get_global_id(1) * BURST, plane = OH * OW, valid = min(BURST, planes - o);
  const ulong first = ((ulong)g * planes + o) * plane, readable = (batch - 1) * dy_stride + (ulong)get_global_size(2) * planes * plane;
  float columns[BURST][POINTS * (NR + V) + V] __attribute__((aligned(64)));
  transform(dy + first, dy_stride, readable - first, strips, count, OH, OW, OUT, valid, rows, columns);
  for (int p = 0; p < POINTS; p++)
    for (int i = 0; i < valid; i++)
#pragma unroll
      for (int j = 0; j < NV; j++)
        GLOBAL(made + (g * POINTS + p) * STEP(planes * pitch) + (o + i) * pitch + begin + j * V) = PRIVATE(columns[i] + p * (NR + V) + j * V);
}

SINGLE void ENTRY(product)(OPERAND_RESTRICT(const float, right), OPERAND_RESTRICT(const float, left), OPERAND_RESTRICT(float, sums), int channels, int outputs,
                    int length, int pitch, int block, int accumulate) {
  LOCATE(right); LOCATE(left); LOCATE(sums);
  const int at = get_global_id(2) * POINTS + get_global_id(0), panels = (channels + NR - 1) / NR;
  const int first = get_global_id(1) * block, last = min(outputs, first + block);
  float tile[MR * NR] __attribute__((aligned(64)));
  right += at * STEP(panels * pitch * NR);
  left += at * STEP(outputs * pitch);
  sums += at * STEP(outputs * panels * NR);
  for (int k0 = 0; k0 < length; k0 += KC) {
    const int depth = min(KC, length - k0), add = accumulate || k0;
    for (int c = 0; c < panels; c++) {
      global const float* b = right + (c * pitch + k0) * NR;
      for (int o = first; o < last; o += MR) {
        const int rows = min(MR, last - o);
        global const float* a[MR]; /* past the last row: copies of it */
#pragma unroll
        for (int i = 0; i < MR; i++) a[i] = left + (o + min(i, rows - 1)) * pitch + k0;
        vec acc[MR][NV];
        MULTIPLY_AT(GLOBAL, acc, a[i][k], b, NR, depth);
        spill(acc, tile);
        finish_rows(tile, sums + (o * panels + c) * NR, panels * NR, rows, NR, NO_BIAS, add, NO_ACTIVATION);
      }
    }
  }
}

SINGLE void ENTRY(window)(OPERAND_RESTRICT(const float, sums), OPERAND_RESTRICT(float, dw), int channels, int outputs, int accumulate) {
  LOCATE(sums); LOCATE(dw);
  const int g = get_global_id(2), o = get_global_id(1), width = (channels + NR - 1) / NR * NR;
  const ulong step = STEP(outputs * width);
  float taps[9][V] __attribute__((aligned(64)));
  sums += g * POINTS * step + o * width;
  dw += ((ulong)g * outputs + o) * channels * 9;
  for (int c = 0; c < channels; c += V, sums += V, dw += 9 * V) {
    vec half_way[3][SIDE];
#pragma unroll
    for (int x = 0; x < SIDE; x++) {
      vec m[SIDE], t[3];
#pragma unroll
      for (int y = 0; y < SIDE; y++) m[y] = GLOBAL(sums + (y * SIDE + x) * step);
      TRANSFORM_WINDOW(t, m);
#pragma unroll
      for (int y = 0; y < 3; y++) half_way[y][x] = t[y];
    }
#pragma unroll
    for (int y = 0; y < 3; y++) {
      vec t[3];
      TRANSFORM_WINDOW(t, half_way[y]);
#pragma unroll
      for (int x = 0; x < 3; x++) PRIVATE(taps[y * 3 + x]) = t[x];
    }
    for (int i = 0; i < min(V, channels - c); i++)
#pragma unroll
      for (int t = 0; t < 9; t++) dw[i * 9 + t] = taps[t][i] + (accumulate ? dw[i * 9 + t] : 0.0f);
  }
}
