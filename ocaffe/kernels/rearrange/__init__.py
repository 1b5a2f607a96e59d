"""Copies: other orders of axes, regions, rows and borders of a tensor."""
