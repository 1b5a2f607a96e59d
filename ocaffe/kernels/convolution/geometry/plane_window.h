/* The window of a convolution over planes, per axis H, W: KERNEL_ (taps), STRIDE_, PAD_, DILATION_ (pixels). ops/conv_window.py defines them. */
#ifndef KERNEL_W
#define KERNEL_H 3
#define KERNEL_W 3
#define STRIDE_H 1
#define STRIDE_W 1
#define PAD_H 1
#define PAD_W 1
#define DILATION_H 1
#define DILATION_W 1
#endif
