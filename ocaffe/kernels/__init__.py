"""Operations, one folder each: Python that records launches, beside the OpenCL C that they run (docs/kernels.md)."""
