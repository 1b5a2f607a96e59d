/* The window of a convolution and the phases of backward_data: conv_gpu.cl, conv_mma.cl.

   Defines, per axis D, H, W: KERNEL_ (taps), STRIDE_, PAD_, DILATION_ (pixels), and PHASE_STEP_ = stride / gcd(stride, dilation), the
   distance in taps between taps of one phase.

   A phase is a set of positions in backward_data that receive gradients from the same taps. A stride of 2 makes four phases in a plane, each
   a dense convolution with a quarter of the taps. Neighbouring work-groups in x compute the phases of the same columns, so that their
   scattered results share cache lines. Forward has one phase. */
#ifndef OCAFFE_CONV_WINDOW_H
#define OCAFFE_CONV_WINDOW_H

#ifndef KERNEL_W
#define KERNEL_D 1
#define KERNEL_H 3
#define KERNEL_W 3
#define STRIDE_D 1
#define STRIDE_H 1
#define STRIDE_W 1
#define PAD_D 0
#define PAD_H 1
#define PAD_W 1
#define DILATION_D 1
#define DILATION_H 1
#define DILATION_W 1
#define PHASE_STEP_D 1
#define PHASE_STEP_H 1
#define PHASE_STEP_W 1
#endif
#define TAPS (KERNEL_D * KERNEL_H * KERNEL_W)
#define STRIDED (STRIDE_D * STRIDE_H * STRIDE_W > 1)
#define PADDED (PAD_D + PAD_H + PAD_W > 0)
#define PHASES (STRIDE_D * STRIDE_H * STRIDE_W)

/* Sizes, the same for all kernels: channels and outputs of one group; d, h, w of the image, od, oh, ow of the convolution's result. */
#define SIZES int batch, int groups, int channels, int outputs, int d, int h, int w, int od, int oh, int ow

/* Return the first tap of the phase of position `p`, or the window's size if the phase has none. */
static inline int first_tap(int p, int kernel_size, int stride, int dilation, int step) {
  int tap = 0;
  while (tap < step && (p - tap * dilation) % stride != 0) ++tap;
  return tap < step ? tap : kernel_size;
}

/* The positions of a phase: from_, from_ + stride_, ..., count_ of them along each axis. positions: per plane; columns: in the whole
   batch; tap_: the first tap of the phase. */
typedef struct {
  int stride_d, stride_h, stride_w, from_d, from_h, from_w, count_d, count_h, count_w, positions, columns, tap_d, tap_h, tap_w;
} Phase;

static inline Phase phase_of(const int backward, int phase, int batch, int td, int th, int tw) {
  Phase f;
  f.stride_d = backward ? STRIDE_D : 1, f.stride_h = backward ? STRIDE_H : 1, f.stride_w = backward ? STRIDE_W : 1;
  f.from_w = phase % f.stride_w, f.from_h = phase / f.stride_w % f.stride_h, f.from_d = phase / f.stride_w / f.stride_h;
  f.count_d = (td - f.from_d + f.stride_d - 1) / f.stride_d, f.count_h = (th - f.from_h + f.stride_h - 1) / f.stride_h;
  f.count_w = (tw - f.from_w + f.stride_w - 1) / f.stride_w;
  f.positions = f.count_d * f.count_h * f.count_w, f.columns = batch * f.positions;
  f.tap_d = backward ? first_tap(f.from_d + PAD_D, KERNEL_D, STRIDE_D, DILATION_D, PHASE_STEP_D) : 0;
  f.tap_h = backward ? first_tap(f.from_h + PAD_H, KERNEL_H, STRIDE_H, DILATION_H, PHASE_STEP_H) : 0;
  f.tap_w = backward ? first_tap(f.from_w + PAD_W, KERNEL_W, STRIDE_W, DILATION_W, PHASE_STEP_W) : 0;
  return f;
}

/* Return the source coordinate along one axis that tap `tap` of position `p` reads. Forward, it is that of tap 0. */
static inline int first_at(const int backward, int p, int tap, int stride, int pad, int dilation) {
  return backward ? (p + pad - tap * dilation) / stride : p * stride - pad;
}

#endif
