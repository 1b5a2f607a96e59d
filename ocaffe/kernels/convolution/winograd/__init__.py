"""Convolutions with 3 x 3 windows by Winograd's algorithm."""
