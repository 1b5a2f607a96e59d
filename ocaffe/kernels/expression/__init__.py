"""Pointwise, broadcast and reduce operations from a line of text: the language, and the kernels that are generated from it."""
