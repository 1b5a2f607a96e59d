"""Convolutions on images whose channels are in blocks of 8, by Hopper's wgmma."""
