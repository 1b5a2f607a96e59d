"""The self-test: cases of kernels and layers against numpy, the report on a device, and the comparison of two reports."""
