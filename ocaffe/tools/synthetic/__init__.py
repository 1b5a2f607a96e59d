"""Synthetic images: scenes with boxes and masks, and lines of text."""
