"""Shared by kernels of several folders: operands, sums that the last work-group finishes, and sign masks."""
