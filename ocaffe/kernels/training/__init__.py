"""Kernels of the solvers: updates, and the exchange of gradients between ranks."""
