"""Convolution: the choice of the kernels for a geometry, and unrolled images. The kernels are in the subfolders."""
