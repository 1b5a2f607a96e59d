"""Integers of chips: histograms of values, from which their scales are chosen."""
