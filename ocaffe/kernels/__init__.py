"""OpenCL C sources, one kernel family per file (see docs/kernels.md)."""
