"""The sizes and windows of convolutions, for Python and for kernels."""
