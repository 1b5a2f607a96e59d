"""Convolutions on CPU runtimes on images whose channels are in blocks, for nets without backward."""
