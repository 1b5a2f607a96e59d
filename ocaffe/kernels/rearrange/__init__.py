"""Copies: other orders of axes, parts, rows and borders of a tensor."""
