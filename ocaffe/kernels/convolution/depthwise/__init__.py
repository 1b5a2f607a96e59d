"""Depthwise convolutions: a filter for each channel."""
