"""Kernels that make a batch: changed and cut images, and random values."""
